# Builds the program behind `vgpurun verify`. Included by ../Makefile.

VERIFY_OBJECTS := $(patsubst verify/%.c,$(BUILD)/obj/verify/%.o,$(wildcard verify/*.c))

.PHONY: verify
verify: $(BUILD)/vgpurun-verify

# start.c has the beginning, also where a compiler adds its own. An older glibc has dlopen in a library of its own; newer
# ones keep it, empty, for such programs. zig has the target's under the name of -ldl alone.
LIBDL ?= -l:libdl.so.2
$(BUILD)/vgpurun-verify: $(VERIFY_OBJECTS)
	$(CC) $(CFLAGS) -pie -nostartfiles -Wl,-e,own_start -o $@.new $^ -Wl,--no-as-needed $(LIBDL)
	mv $@.new $@

$(BUILD)/obj/verify/%.o: verify/%.c verify/verify.mk | $(BUILD)/obj/verify headers
	$(CC) $(STRICT) $(CFLAGS) $(INCLUDES) -MMD -c $< -o $@

$(BUILD)/obj/verify:
	mkdir -p $@

-include $(wildcard $(BUILD)/obj/verify/*.d)
