# For the Makefiles of the examples that link symwin: against the source tree that contains this
# folder, or with `make SYMWIN=` against the symwin that pkg-config finds. PROGRAMS are those that
# need the library.
#
# The tree's library is built if there is none; `make` in the tree builds it anew. Here that would
# build it for this example's variables, such as NVCC= or ARCH=80.

SYMWIN ?= ../..
CFLAGS ?= -O2 -g

ifneq ($(SYMWIN),)
FLAGS := -I$(SYMWIN)
LIBS  := $(SYMWIN)/build/libsymwin.a -lpthread -ldl -lm

$(SYMWIN)/build/libsymwin.a:
	$(MAKE) -C $(SYMWIN) build/libsymwin.a

$(PROGRAMS): $(SYMWIN)/build/libsymwin.a
else
ifneq ($(MAKECMDGOALS),clean)
ifneq ($(shell pkg-config --exists symwin 2>/dev/null && echo yes),yes)
$(error pkg-config finds no symwin: set PKG_CONFIG_PATH to the folder of symwin.pc, or leave SYMWIN= \
out to use the source tree)
endif
endif
FLAGS := $(shell pkg-config --cflags symwin)
LIBS  := $(shell pkg-config --libs symwin) -lpthread
endif

.DEFAULT_GOAL := $(firstword $(PROGRAMS))

.PHONY: clean
