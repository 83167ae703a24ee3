{{- define "firelane.labels" -}}
{{ include "firelane.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "firelane.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Pools as JSON, a list: each with its name, workload, role, and all values that it may have of its own. */}}
{{- define "firelane.pools" -}}
{{- $own := pick .Values "replicas" "nodes" "resources" "nodeSelector" "tolerations" "affinity" "autoscaling" -}}
{{- $pools := list -}}
{{- $answering := 0 -}}
{{- $exchanging := 0 -}}
{{- range $name, $given := .Values.pools | default (dict "server" dict) -}}
{{- $pool := mustMergeOverwrite (mustDeepCopy $own) (mustDeepCopy ($given | default dict)) -}}
{{- $_ := set $pool "name" $name -}}
{{- $_ := set $pool "workload" ($.Values.pools | empty | ternary $.Release.Name (printf "%s-%s" $.Release.Name $name)) -}}
{{- $_ := set $pool "args" (concat $.Values.args ($pool.args | default list)) -}}
{{- $_ := set $pool "role" ($pool.role | default (has $name (list "prefill" "decode") | ternary $name "prefill-decode")) -}}
{{- $apart := ne $pool.role "prefill-decode" -}}
{{- $group := gt (int $pool.nodes) 1 -}}
{{- if and $apart $group -}}
{{- fail (printf "pool %s: pages of engines with ranks on several nodes do not travel; leave out its role or its nodes" $name) -}}
{{- end -}}
{{- if and (or $apart $group) (not $.Values.clusterKeySecret) -}}
{{- fail (printf "pool %s: its pods need a key that they share; name its Secret with clusterKeySecret" $name) -}}
{{- end -}}
{{- $_ := set $pool "sidecar" (and (eq $pool.role "decode") (ne $.Values.sidecar.image "")) -}}
{{- if and $pool.sidecar $.Values.tlsSecret -}}
{{- fail "sidecar.image: the proxy speaks HTTP to its server; leave out tlsSecret" -}}
{{- end -}}
{{- if ne $pool.role "prefill" -}}{{- $answering = add1 $answering -}}{{- end -}}
{{- if $apart -}}{{- $exchanging = add1 $exchanging -}}{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- if not $answering -}}
{{- fail "pools: all are for prefill; name one whose role is decode or prefill-decode" -}}
{{- end -}}
{{- if eq .Values.kvTransport "nixl" -}}
{{- if not $exchanging -}}
{{- fail "kvTransport: nothing travels without pools for prefill and decode; name such in pools, or leave it out" -}}
{{- end -}}
{{- if lt (sub (int .Values.ucx.lastPort) (int .Values.ucx.firstPort)) 15 -}}
{{- fail "ucx: an engine takes several of these ports; give 16 at least" -}}
{{- end -}}
{{- end -}}
{{- $pools | toJson -}}
{{- end }}

{{/* What pods that give each other pages are selected by. */}}
{{- define "firelane.exchanging" -}}
matchLabels:
  {{- include "firelane.selector" . | nindent 2 }}
matchExpressions:
  - {key: llm-d.ai/role, operator: In, values: [prefill, decode]}
{{- end }}

{{/* What the pods of a pool are selected by: dict "root" "pool" */}}
{{- define "firelane.poolSelector" -}}
{{ include "firelane.selector" .root }}
app.kubernetes.io/component: {{ .pool.name }}
{{- end }}

{{/* Labels of a pod that answers requests. The last one is missing where only a router sends them. */}}
{{- define "firelane.podLabels" -}}
{{ include "firelane.labels" .root }}
app.kubernetes.io/component: {{ .pool.name }}
llm-d.ai/inference-serving: "true"
llm-d.ai/engine-type: vllm
llm-d.ai/role: {{ .pool.role }}
{{- with .root.Values.model }}
llm-d.ai/model: {{ regexReplaceAll "[^A-Za-z0-9._-]+" . "-" | trimAll "-_." | trunc 63 | trimAll "-_." | quote }}
{{- end }}
{{- if ne .pool.role "prefill" }}
firelane/serves-clients: "true"
{{- end }}
{{- end }}
