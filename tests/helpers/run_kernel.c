/* Calls one kernel of a library through the ABI of tvm-ffi, without tvm-ffi: for machines that only qemu stands in for.
 *
 *     run_kernel LIBRARY KERNEL MEMORY BASE SIZE < arguments
 *
 * The file MEMORY of SIZE bytes is mapped at address BASE, so that addresses mean the same here and where it was made.
 * Arguments, one a line:  i VALUE  |  f VALUE  |  t ADDRESS CODE BITS DIMENSIONS SHAPE...  (a contiguous DLTensor)
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct { int32_t type_index, padding; union { int64_t integer; double real; void *pointer; }; } Any;
typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DataType;
typedef struct {
  void *data; Device device; int32_t ndim; DataType dtype; int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;
typedef int (*Kernel)(void *, const Any *, int32_t, Any *);
enum { INT = 1, FLOAT = 3, DLTENSOR = 7, MOST = 64 };

/* What a kernel calls when its arguments are wrong. */
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) { fprintf(stderr, "%s: %s\n", kind, message); }
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) fputs(parts[i] ? parts[i] : "", stderr);
  fputc('\n', stderr);
}

int main(int count, char **words) {
  if (count != 6) return 64;
  char *base = (char *)strtoull(words[4], NULL, 0);
  size_t size = strtoull(words[5], NULL, 0);
  if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, open(words[3], O_RDWR), 0) != base) return 65;
  void *library = dlopen(words[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 66;
  char symbol[256];
  snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", words[2]);
  Kernel kernel = (Kernel)dlsym(library, symbol);
  if (!kernel) return fprintf(stderr, "%s\n", dlerror()), 67;
  static Any arguments[MOST];
  static Tensor tensors[MOST];
  static int64_t shapes[MOST][8];
  int32_t n = 0;
  char kind;
  for (; n < MOST && scanf(" %c", &kind) == 1; ++n) {
    if (kind == 'i' && scanf("%ld", &arguments[n].integer) == 1) {
      arguments[n].type_index = INT;
    } else if (kind == 'f' && scanf("%lf", &arguments[n].real) == 1) {
      arguments[n].type_index = FLOAT;
    } else if (kind == 't') {
      uint64_t address;
      int code, bits;
      Tensor *tensor = &tensors[n];
      if (scanf("%lu %d %d %d", &address, &code, &bits, &tensor->ndim) != 4 || tensor->ndim > 8) return 68;
      for (int d = 0; d < tensor->ndim; ++d)
        if (scanf("%ld", &shapes[n][d]) != 1) return 68;
      static int64_t strides[MOST][8];
      for (int d = tensor->ndim - 1; d >= 0; --d)
        strides[n][d] = d == tensor->ndim - 1 ? 1 : strides[n][d + 1] * shapes[n][d + 1];
      *tensor = (Tensor){(void *)address, {1, 0}, tensor->ndim, {code, bits, 1}, shapes[n], strides[n], 0};
      arguments[n].type_index = DLTENSOR;
      arguments[n].pointer = tensor;
    } else {
      return 68;
    }
  }
  Any result = {0};
  return kernel(NULL, arguments, n, &result) ? 69 : 0;
}
