// Runs a target with the files that are named, without libFuzzer: any compiler builds it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    std::FILE* file = std::fopen(names[i], "rb");
    if (!file) return 2;
    std::vector<std::uint8_t> content(1 << 20);
    content.resize(std::fread(content.data(), 1, content.size(), file));
    content.shrink_to_fit();
    std::fclose(file);
    std::fprintf(stderr, "%s\n", names[i]);
    LLVMFuzzerTestOneInput(content.data(), content.size());
  }
}
