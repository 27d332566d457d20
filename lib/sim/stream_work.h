/* Calls that put work into a stream, or wait for it. */
#pragma once

#include "streams.h"

/* Enters the driver and finds the stream that a handle means to a function of this kind, once its context has room for
 * more work. The legacy stream cannot be used beside a capture that would involve it. */
CUresult stream_enter(CUstream handle, enum default_stream default_stream, struct stream **stream);
