#include "base/libc_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct symbols {
  const ElfW(Sym) * table;
  const char *strings;
  const uint32_t *gnu_hash;
};

static uint32_t gnu_hash(const char *name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; name++)
    hash = hash * 33 + (unsigned char)*name;
  return hash;
}

/* The layout: four words of header, the Bloom filter, the buckets, the chains.
 * The Bloom filter is skipped: there are few lookups. */
static const ElfW(Sym) * find(const struct symbols *symbols, const char *name) {
  uint32_t bucket_count = symbols->gnu_hash[0];
  uint32_t first = symbols->gnu_hash[1];
  uint32_t bloom_words = symbols->gnu_hash[2];
  const uint32_t *buckets = symbols->gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chains = buckets + bucket_count;
  uint32_t hash = gnu_hash(name);
  uint32_t index = bucket_count > 0 ? buckets[hash % bucket_count] : 0;
  for (; index >= first; index++) {
    const ElfW(Sym) *symbol = &symbols->table[index];
    bool same_hash = (chains[index - first] | 1) == (hash | 1);
    if (same_hash && symbol->st_shndx != SHN_UNDEF && text_equals(symbols->strings + symbol->st_name, name))
      return symbol;
    if (chains[index - first] & 1)
      break;
  }
  return NULL;
}

static bool is_libc(const char *path) {
  static const char *const beginnings[] = {"libc.so", "libc-", "libdl.so", "libdl-", "ld-musl", "libc.musl"};
  const char *base = path;
  for (const char *p = path; p != NULL && *p != '\0'; p++)
    if (*p == '/')
      base = p + 1;
  for (size_t i = 0; base != NULL && i < sizeof beginnings / sizeof beginnings[0]; i++)
    if (text_begins_with(base, beginnings[i]))
      return true;
  return false;
}

/* glibc has made the dynamic section's addresses absolute; musl leaves them relative to the load address. */
static const void *at(ElfW(Addr) load_address, ElfW(Addr) address) {
  return (const void *)(address < load_address ? load_address + address : address);
}

static void *find_in_object(ElfW(Addr) load_address, const ElfW(Dyn) * entry, const char *name) {
  struct symbols symbols = {0};
  for (; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB)
      symbols.table = at(load_address, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_STRTAB)
      symbols.strings = at(load_address, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_GNU_HASH)
      symbols.gnu_hash = at(load_address, entry->d_un.d_ptr);
  }
  if (symbols.table == NULL || symbols.strings == NULL || symbols.gnu_hash == NULL)
    return NULL;
  const ElfW(Sym) *symbol = find(&symbols, name);
  return symbol == NULL ? NULL : (void *)(load_address + symbol->st_value);
}

/* The loader's list of objects, which it shows to debuggers in the program's dynamic section. */
static const struct link_map *loaded_objects(void) {
  const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
  const ElfW(Phdr) *header = NULL, *dynamic = NULL;
  for (unsigned long i = 0; headers != NULL && i < getauxval(AT_PHNUM); i++) {
    if (headers[i].p_type == PT_PHDR)
      header = &headers[i];
    else if (headers[i].p_type == PT_DYNAMIC)
      dynamic = &headers[i];
  }
  if (header == NULL || dynamic == NULL)
    return NULL;
  ElfW(Addr) load_address = (ElfW(Addr))headers - header->p_vaddr;
  const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(load_address + dynamic->p_vaddr);
  while (entry->d_tag != DT_NULL && entry->d_tag != DT_DEBUG)
    entry++;
  const struct r_debug *debug = entry->d_tag == DT_DEBUG ? (const struct r_debug *)entry->d_un.d_ptr : NULL;
  return debug != NULL ? debug->r_map : NULL;
}

struct search {
  const char *name;
  void *address;
  ElfW(Addr) code; /* in the object after which the search begins */
  bool has_begun;
};

static bool search_object(const struct dl_phdr_info *object, struct search *search) {
  for (int i = 0; i < object->dlpi_phnum && search->address == NULL; i++)
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
      search->address = find_in_object(object->dlpi_addr, entry, search->name);
    }
  return search->address != NULL;
}

static int search_libc(struct dl_phdr_info *object, size_t size, void *search) {
  (void)size;
  return is_libc(object->dlpi_name) && search_object(object, search);
}

/* dl_iterate_phdr comes second: some programs have one of their own, which begins with a dlsym for the real one. */
static void *find_in_libc(const char *name) {
  struct search search = {.name = name};
  for (const struct link_map *object = loaded_objects(); object != NULL && search.address == NULL;
       object = object->l_next)
    if (is_libc(object->l_name))
      search.address = find_in_object(object->l_addr, object->l_ld, name);
  if (search.address == NULL)
    dl_iterate_phdr(search_libc, &search);
  return search.address;
}

static void *finds_nothing(void) {
  return NULL;
}

/* Threads may do this at the same time: they find the same. A missing symbol is not remembered, since an old C
 * library's libdl may be loaded later. */
static void *remember(void **known, const char *name) {
  void *address = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (address == NULL) {
    address = find_in_libc(name);
    __atomic_store_n(known, address, __ATOMIC_RELAXED);
  }
  return address != NULL ? address : (void *)finds_nothing;
}

dlopen_function *libc_find_dlopen(void) {
  static void *known;
  return (dlopen_function *)remember(&known, "dlopen");
}

dlsym_function *libc_find_dlsym(void) {
  static void *known;
  return (dlsym_function *)remember(&known, "dlsym");
}

dlvsym_function *libc_find_dlvsym(void) {
  static void *known;
  return (dlvsym_function *)remember(&known, "dlvsym");
}

void *libc_dlsym(void *handle, const char *name) {
  return libc_find_dlsym()(handle, name);
}

void *libc_dlopen(const char *name, int flags) {
  return libc_find_dlopen()(name, flags);
}

static bool contains(const struct dl_phdr_info *object, ElfW(Addr) code) {
  for (int i = 0; i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_LOAD &&
        code - object->dlpi_addr - object->dlpi_phdr[i].p_vaddr < object->dlpi_phdr[i].p_memsz)
      return true;
  return false;
}

static int search_after(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct search *search = argument;
  if (search->has_begun)
    return search_object(object, search);
  search->has_begun = contains(object, search->code);
  return false;
}

/* By the C library's own dl_iterate_phdr, which keeps others from unloading an object meanwhile. */
void *libc_find_after(const void *code, const char *name) {
  static void *known;
  struct search search = {.name = name, .code = (ElfW(Addr))code};
  ((__typeof__(dl_iterate_phdr) *)remember(&known, "dl_iterate_phdr"))(search_after, &search);
  return search.address;
}

bool libc_file_status(int file, struct stat *status) {
  return syscall(SYS_fstat, file, status) == 0;
}
