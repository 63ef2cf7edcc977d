/* LD_PRELOAD: the n-th call that opens, writes, renames, syncs, truncates or removes a file below FAULT_FOLDER fails.

   fault_arm(n, error, lasting): from now on, the n-th such call (from 1) fails with errno `error`, and with `lasting`
   every later one too; n = 0: none does. fault_calls(): how many there were since. fault_last(): the name of the call
   that failed first, "" if none did. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long armed, calls;
static int error_number, lasting;
static const char *first = "";

void fault_arm(long n, int error, int stays) { armed = n, calls = 0, error_number = error, lasting = stays, first = ""; }
long fault_calls(void) { return calls; }
const char *fault_last(void) { return first; }

static int fails(const char *name) {
  if (error_number == ENOSPC && strchr("tru", *name)) {  /* truncate, rename and unlink need no room, and make some */
    if (lasting && calls >= armed) armed = 0;
    return 0;
  }
  const long number = __sync_add_and_fetch(&calls, 1);
  if (!armed || !(number == armed || (lasting && number > armed))) return 0;
  if (!*first) first = name;
  errno = error_number;
  return 1;
}

static int below(const char *path) {
  const char *folder = getenv("FAULT_FOLDER");
  return folder && path && !strncmp(path, folder, strlen(folder));
}

static int held(int descriptor) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return below(path);
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; \
    va_start(rest, flags); \
    const mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    REAL(int, name, const char *, int, ...); \
    const int full = error_number == ENOSPC && !(flags & O_CREAT); /* reading needs no room */ \
    return below(path) && !full && fails("open") ? -1 : real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

ssize_t write(int descriptor, const void *data, size_t size) {
  REAL(ssize_t, write, int, const void *, size_t);
  return held(descriptor) && fails("write") ? -1 : real(descriptor, data, size);
}
int fsync(int descriptor) {
  REAL(int, fsync, int);
  return held(descriptor) && fails("fsync") ? -1 : real(descriptor);
}
int ftruncate64(int descriptor, off64_t size) {
  REAL(int, ftruncate64, int, off64_t);
  return held(descriptor) && fails("truncate") ? -1 : real(descriptor, size);
}
int rename(const char *from, const char *to) {
  REAL(int, rename, const char *, const char *);
  return below(from) && fails("rename") ? -1 : real(from, to);
}
int unlink(const char *path) {
  REAL(int, unlink, const char *);
  return below(path) && fails("unlink") ? -1 : real(path);
}
int mkdir(const char *path, mode_t mode) {
  REAL(int, mkdir, const char *, mode_t);
  return below(path) && fails("mkdir") ? -1 : real(path, mode);
}
