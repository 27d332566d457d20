# Builds the program behind `vgpurun verify`. Included by ../Makefile.

VERIFY_OBJECTS := $(patsubst verify/%.c,$(BUILD)/obj/verify/%.o,$(wildcard verify/*.c))

.PHONY: verify
verify: $(BUILD)/vgpurun-verify

# start.c has _start. An older glibc has dlopen in a library of its own; newer ones keep it, empty, for such programs.
$(BUILD)/vgpurun-verify: $(VERIFY_OBJECTS)
	$(CC) $(CFLAGS) -pie -nostartfiles -o $@.new $^ -Wl,--no-as-needed -l:libdl.so.2
	mv $@.new $@

$(BUILD)/obj/verify/%.o: verify/%.c verify/verify.mk | $(BUILD)/obj/verify headers
	$(CC) $(STRICT) $(CFLAGS) $(INCLUDES) -MMD -c $< -o $@

$(BUILD)/obj/verify:
	mkdir -p $@

-include $(wildcard $(BUILD)/obj/verify/*.d)
