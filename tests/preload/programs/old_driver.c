/* A driver that lacks most of what the library looks for. */
int cuMemAlloc_v2(void *pointer, unsigned long size);

int cuMemAlloc_v2(void *pointer, unsigned long size) {
  (void)pointer, (void)size;
  return 3;
}
