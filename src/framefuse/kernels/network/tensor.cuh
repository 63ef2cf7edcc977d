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
