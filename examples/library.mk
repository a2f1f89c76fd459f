# For the Makefiles of the examples that link symwin: against the source tree that contains this
# folder, whose library is built if needed, or with `make SYMWIN=` against the symwin that
# pkg-config finds. PROGRAMS are those that need the library.

SYMWIN ?= ../..
CFLAGS ?= -O2 -g

ifneq ($(SYMWIN),)
FLAGS := -I$(SYMWIN)
LIBS  := $(SYMWIN)/build/libsymwin.a -lpthread -ldl -lm

$(SYMWIN)/build/libsymwin.a: FORCE
	$(MAKE) -C $(SYMWIN) build/libsymwin.a

$(PROGRAMS): $(SYMWIN)/build/libsymwin.a
else
FLAGS := $(shell pkg-config --cflags symwin)
LIBS  := $(shell pkg-config --libs symwin) -lpthread
endif

.DEFAULT_GOAL := $(firstword $(PROGRAMS))

.PHONY: FORCE clean
