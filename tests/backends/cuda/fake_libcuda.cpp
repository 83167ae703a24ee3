// The calls of libcuda and of NVML that firelane/backends/cuda/presence.py makes, answered from macros.
#include <cstring>

extern "C" {
int cuInit(unsigned) { return INIT; }
int cuDriverGetVersion(int* version) { return *version = DRIVER_CUDA, 0; }
int cuDeviceGetCount(int* count) { return *count = COUNT, 0; }
int cuDeviceGet(int* device, int) { return *device = 7, 0; }
int cuDeviceGetName(char* name, int size, int device) {
  return device == 7 ? std::strncpy(name, "Fake H200", size), 0 : 101;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int device) { return *bytes = 128ull << 30, device != 7; }
int cuDeviceGetPCIBusId(char* id, int size, int) { return std::strncpy(id, "0000:9a:00.0", size), 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  return *value = which == 75 ? MAJOR : which == 76 ? 5 : -1, 0;
}

struct Memory { unsigned long long total, free, used; };
int nvmlInit_v2() { return NVML; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  static int device; return *handle = &device, std::strcmp(id, "0000:9a:00.0");
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  return *memory = {128ull << 30, 1ull << 30, 127ull << 30}, 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return std::strncpy(text, "580.1", size), 0; }
}
