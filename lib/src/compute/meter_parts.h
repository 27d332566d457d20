/* Fields that threads share without a claim. */
#pragma once

#include "base/claim.h"
#include "base/compiler.h"
#include "compute/meter.h"

#define get(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define set(field, to) atomic_store_explicit(&(field), to, memory_order_relaxed)
#define add(field, more) atomic_fetch_add_explicit(&(field), more, memory_order_relaxed)
#define swap(field, to) atomic_exchange_explicit(&(field), to, memory_order_relaxed)
#define replace(field, from, to)                                                                                       \
  atomic_compare_exchange_weak_explicit(&(field), &(from), to, memory_order_relaxed, memory_order_relaxed)
