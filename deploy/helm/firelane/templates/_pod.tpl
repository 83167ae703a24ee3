{{/* The spec of a pod: dict "root" "pool" "serves" (false: its ranks compute for another pod) */}}
{{- define "firelane.pod" -}}
{{- $values := .root.Values -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add $values.drainTimeoutSeconds 30 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- if and .pool.sidecar .serves }}
initContainers:
  - name: routing-proxy
    image: {{ $values.sidecar.image | quote }}
    restartPolicy: Always # it goes on until the server has ended
    args:
      - --port=8000
      - --vllm-port=8200
      {{- toYaml $values.sidecar.args | nindent 6 }}
    ports:
      - name: http
        containerPort: 8000
    securityContext:
      {{- include "firelane.rights" . | nindent 6 }}
{{- end }}
containers:
  - name: firelane
    image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args:
      {{- include "firelane.args" . | nindent 6 }}
    env:
      - name: POD_IP
        valueFrom:
          fieldRef:
            fieldPath: status.podIP
      {{- if and (ne .pool.role "prefill-decode") (eq $values.kvTransport "nixl") }}
      - name: UCX_TCP_PORT_RANGE
        value: "{{ int $values.ucx.firstPort }}-{{ int $values.ucx.lastPort }}"
      {{- with $values.ucx.netDevices }}
      - name: UCX_NET_DEVICES
        value: {{ . | quote }}
      {{- end }}
      {{- end }}
      {{- with $values.hubTokenSecret }}
      - name: HF_TOKEN
        valueFrom:
          secretKeyRef:
            name: {{ . }}
            key: HF_TOKEN
      {{- end }}
    {{- if .serves }}
    {{- include "firelane.ports" . | nindent 4 }}
    {{- include "firelane.probes" . | nindent 4 }}
    {{- end }}
    resources:
      {{- toYaml .pool.resources | nindent 6 }}
    securityContext:
      {{- include "firelane.rights" . | nindent 6 }}
      readOnlyRootFilesystem: true
    volumeMounts:
      - name: cache
        mountPath: /cache
      - name: models
        mountPath: /models
      - name: tmp
        mountPath: /tmp
      {{- range include "firelane.secrets" .root | fromYamlArray }}
      - name: {{ .name }}
        mountPath: /etc/firelane/{{ .name }}
        readOnly: true
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  - name: cache
    {{- if $values.cache.existingClaim }}
    persistentVolumeClaim:
      claimName: {{ $values.cache.existingClaim }}
    {{- else }}
    emptyDir:
      sizeLimit: {{ $values.cache.sizeLimit }}
    {{- end }}
  - name: models
    {{- if $values.models.existingClaim }}
    persistentVolumeClaim:
      claimName: {{ $values.models.existingClaim }}
    {{- else }}
    emptyDir: {}
    {{- end }}
  {{- range include "firelane.secrets" .root | fromYamlArray }}
  - name: {{ .name }}
    secret:
      secretName: {{ .secret }}
  {{- end }}
{{- with .pool.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "firelane.rights" -}}
allowPrivilegeEscalation: false
runAsNonRoot: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{/* Volumes that are Secrets; each is mounted at /etc/firelane/NAME. */}}
{{- define "firelane.secrets" -}}
{{- $found := list -}}
{{- with .Values.apiKeysSecret }}{{ $found = append $found (dict "name" "keys" "secret" .) }}{{ end -}}
{{- with .Values.tlsSecret }}{{ $found = append $found (dict "name" "tls" "secret" .) }}{{ end -}}
{{- with .Values.clusterKeySecret }}{{ $found = append $found (dict "name" "cluster" "secret" .) }}{{ end -}}
{{- toYaml $found -}}
{{- end }}

{{/* Words of `firelane serve`. The pods of a group get the same ones, and their places from LeaderWorkerSet. */}}
{{- define "firelane.args" -}}
{{- $values := .root.Values -}}
{{- with $values.model }}
- {{ . | quote }}
{{- end }}
- --metrics-port
- {{ $values.metricsPort | quote }}
- --drain-timeout
- {{ $values.drainTimeoutSeconds | quote }}
{{- if .pool.sidecar }}
- --port
- "8200"
{{- end }}
{{- if $values.apiKeysSecret }}
- --api-keys
- /etc/firelane/keys/keys.toml
{{- else }}
- --allow-anonymous
{{- end }}
{{- if $values.tlsSecret }}
- --tls-cert
- /etc/firelane/tls/tls.crt
- --tls-key
- /etc/firelane/tls/tls.key
{{- end }}
{{- if $values.clusterKeySecret }}
- --cluster-key-file
- /etc/firelane/cluster/cluster.key
{{- end }}
{{- if ne .pool.role "prefill-decode" }}
- --kv-transfer-address
- $(POD_IP):{{ $values.kvTransferPort }}
- --kv-transport
- {{ $values.kvTransport }}
{{- end }}
{{- if $values.kvEvents.enabled }}
{{- $name := $values.model | default "firelane-embedded" }}
{{- $topic := printf "kv@$(POD_IP):8000@%s" $name }}
{{- $endpoint := printf "tcp://*:%d" (int $values.kvEvents.port) }}
- --kv-events-config
- {{ dict "enable_kv_cache_events" true "endpoint" $endpoint "topic" $topic | toJson | quote }}
{{- end }}
{{- range .pool.args }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "firelane.ports" -}}
ports:
  - name: {{ .pool.sidecar | ternary "server" "http" }}
    containerPort: {{ .pool.sidecar | ternary 8200 8000 }}
  - name: metrics
    containerPort: {{ .root.Values.metricsPort }}
  {{- if ne .pool.role "prefill-decode" }}
  - name: kv-transfer
    containerPort: {{ .root.Values.kvTransferPort }}
  {{- end }}
  {{- if .root.Values.kvEvents.enabled }}
  - name: kv-events
    containerPort: {{ .root.Values.kvEvents.port }}
  {{- end }}
{{- end }}

{{- define "firelane.probes" -}}
# The second port, which needs neither key nor certificate: 503 while models load, 200 when all serve.
startupProbe:
  tcpSocket:
    port: metrics
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet:
    path: /health
    port: metrics
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
# A model that loads, or whose engine is being replaced, is no reason to end the server.
livenessProbe:
  tcpSocket:
    port: metrics
  periodSeconds: 10
  failureThreshold: 6
lifecycle:
  preStop: # the Service and the picker forget the pod first
    exec:
      command: ["sleep", "5"]
{{- end }}
