#include "libc_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct search {
  const char *name;
  void *address;
};

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
    if (same_hash && symbol->st_shndx != SHN_UNDEF && strcmp(symbols->strings + symbol->st_name, name) == 0)
      return symbol;
    if (chains[index - first] & 1)
      break;
  }
  return NULL;
}

static bool is_libc(const char *path) {
  const char *slash = path != NULL ? strrchr(path, '/') : NULL;
  const char *base = slash != NULL ? slash + 1 : path;
  return base != NULL &&
         (strncmp(base, "libc.so", 7) == 0 || strncmp(base, "libdl.so", 8) == 0 || strncmp(base, "libc-", 5) == 0 ||
          strncmp(base, "libdl-", 6) == 0 || strncmp(base, "ld-musl", 7) == 0 || strncmp(base, "libc.musl", 9) == 0);
}

/* glibc has made the dynamic section's addresses absolute; musl leaves them relative to the load address. */
static const void *at(const struct dl_phdr_info *object, ElfW(Addr) address) {
  return (const void *)(address < object->dlpi_addr ? object->dlpi_addr + address : address);
}

static int search_object(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct search *search = argument;
  if (!is_libc(object->dlpi_name))
    return 0;
  struct symbols symbols = {0};
  for (int i = 0; i < object->dlpi_phnum; i++) {
    if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
      continue;
    const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; entry++) {
      if (entry->d_tag == DT_SYMTAB)
        symbols.table = at(object, entry->d_un.d_ptr);
      else if (entry->d_tag == DT_STRTAB)
        symbols.strings = at(object, entry->d_un.d_ptr);
      else if (entry->d_tag == DT_GNU_HASH)
        symbols.gnu_hash = at(object, entry->d_un.d_ptr);
    }
  }
  if (symbols.table == NULL || symbols.strings == NULL || symbols.gnu_hash == NULL)
    return 0;
  const ElfW(Sym) *symbol = find(&symbols, search->name);
  if (symbol == NULL)
    return 0;
  search->address = (void *)(object->dlpi_addr + symbol->st_value);
  return 1;
}

static void *find_in_libc(const char *name) {
  struct search search = {.name = name};
  dl_iterate_phdr(search_object, &search);
  return search.address;
}

static void *finds_nothing(void) {
  return NULL;
}

/* Threads may do this at the same time: they find the same. */
static void *remember(void **known, const char *name) {
  void *address = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (address == NULL) {
    address = find_in_libc(name);
    if (address == NULL)
      address = (void *)finds_nothing;
    __atomic_store_n(known, address, __ATOMIC_RELAXED);
  }
  return address;
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
  static void *known;
  return ((void *(*)(const char *, int))remember(&known, "dlopen"))(name, flags);
}
