// PyTorch's own caching host allocator, over malloc: what the model in breakfix.probes.pinned is held to.
#include <ATen/core/CachingHostAllocator.h>

#include <cstdlib>

struct Allocator : at::CachingHostAllocatorImpl<c10::Stream, int> {
 private:
  void allocate_host_memory(size_t size, void** ptr) override { *ptr = std::malloc(size); }
  void free_block(at::HostBlock<c10::Stream>* block) override { std::free(block->ptr_); }
  bool query_event(int&) override { return true; }
};

extern "C" {
Allocator* pool_new() { return new Allocator(); }
void* pool_take(Allocator* pool, size_t size) { return pool->allocate(size).second; }
void pool_give_back(Allocator* pool, void* block) { pool->free(block); }
void pool_empty_cache(Allocator* pool) { pool->empty_cache(); }
size_t pool_held(Allocator* pool) { return pool->getStats().allocated_bytes.current; }
size_t pool_held_peak(Allocator* pool) { return pool->getStats().allocated_bytes.peak; }
size_t pool_used(Allocator* pool) { return pool->getStats().active_bytes.current; }
size_t pool_allocations(Allocator* pool) { return pool->getStats().num_host_alloc; }
}
