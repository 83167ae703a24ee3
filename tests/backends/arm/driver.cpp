// Behind a generated program: a process that runs it on memory shared with the tests, at one address in both.
//
//   PROGRAM TOKENS      prints the bytes of scratch that a thread needs for steps of so many tokens
//   PROGRAM FILE SIZE   maps the file at kBase, where pointers in it hold; then for each byte on standard input: 'c'
//                       creates the executor from the CreateArgs at kBase, 's' runs the StepArgs at kStep. Answers
//                       with the same byte.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {
constexpr unsigned long kBase = 0x100000000000, kStep = kBase + 4096;
}

int main(int argc, char** argv) {
  if (argc < 3) return std::printf("%lld\n", firelane_scratch_bytes(std::atoll(argv[1]))) < 0;
  const int file = open(argv[1], O_RDWR);
  void* const wanted = reinterpret_cast<void*>(kBase);
  void* const memory = mmap(wanted, std::strtoul(argv[2], nullptr, 10), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  if (memory != wanted) return 2;
  void* executor = nullptr;
  for (char command; read(0, &command, 1) == 1;) {
    if (command == 'c') {
      executor = firelane_create(static_cast<const firelane::CreateArgs*>(memory));
    } else {
      firelane_submit(executor, reinterpret_cast<const firelane::StepArgs*>(kStep));
      firelane_wait(executor);
    }
    if (write(1, &command, 1) != 1) return 3;
  }
  firelane_destroy(executor);
  return 0;
}
