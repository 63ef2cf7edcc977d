// What a warp does with tensor cores and with copies into shared memory, from compute capability 8.0 on. A compiler other
// than NVRTC brings its own functions of these names.

#ifdef __CUDACC_RTC__
#if __CUDA_ARCH__ >= 800
static __device__ unsigned shared_address(const void* memory) { return (unsigned)__cvta_generic_to_shared(memory); }

// 16 bytes, or as many zeros. What was copied before a `close_group` belongs to that group. `again`: keep them in L1, since
// this multiprocessor soon reads them again.
static __device__ void copy_async(void* to, const void* from, bool valid, bool again = false) {
  const unsigned address = shared_address(to), bytes = valid ? 16 : 0;
  if (again) asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
static __device__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last `groups` groups of this thread have arrived.
template <int groups>
static __device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Four matrices of 8 rows, 16 bytes each: lane i has the address of row i % 8 of matrix i / 8. It gets from each matrix
// the numbers 2 (lane % 4) and the next of row lane / 4.
static __device__ void load_matrices(unsigned (&found)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
               : "r"(shared_address(row))
               : "memory");
}

// sums += a b: 16 x 16 by 16 x 8, float16, summed in float32.
static __device__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// What four warps do together, on compute capability 9.0 alone. Rows of 64 numbers lie in shared memory, 16 bytes of row i at
// place (k ^ i % 8) of its 128, from an address that is a multiple of 1024 for every eighth row.
static __device__ uint64_t rows_at(const void* first) {
  return (uint64_t)((shared_address(first) & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
static __device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups>
static __device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
// What was copied into shared memory can be multiplied from now on, if a barrier follows.
static __device__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// sums += a b: 64 x 16 by 16 x 128, float16, summed in float32. Warp w has rows 16 w and the next 15; in each eight columns a
// thread has those of `multiply_add`.
static __device__ void multiply_add_wide(float (&sums)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0; }"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7]),
        "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]),
        "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]),
        "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]), "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]),
        "+f"(sums[40]), "+f"(sums[41]), "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47]),
        "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]), "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]),
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]), "+f"(sums[62]), "+f"(sums[63])
      : "l"(a), "l"(b), "r"(1));
}
#else  // nobody launches a kernel that needs these
static __device__ uint64_t rows_at(const void*) { return 0; }
static __device__ void begin_products() {}
static __device__ void close_products() {}
template <int groups>
static __device__ void wait_for_products() {}
static __device__ void show_copies() {}
static __device__ void multiply_add_wide(float (&)[64], uint64_t, uint64_t) {}
#endif

#if __CUDA_ARCH__ >= 900
#define CLUSTER(blocks) __cluster_dims__(1, 1, blocks)

// All threads of all blocks of a cluster; what they wrote to shared memory is visible to each other.
static __device__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Four numbers in the shared memory of another block of the cluster, where `own` lies in that of this one.
static __device__ float4 load_from_block(const float* own, int block) {
  unsigned address;
  float4 found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
               : "r"(address)
               : "memory");
  return found;
}
#else
#define CLUSTER(blocks)
static __device__ void sync_cluster() {}  // there are no clusters, and nobody launches a kernel that needs them
static __device__ float4 load_from_block(const float* own, int block) { return *(const float4*)own; }
#endif
#endif
