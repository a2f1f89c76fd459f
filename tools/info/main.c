/* symwin-info: what this machine can do for symwin, and why something will not work. `--help` has the options. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "../../emu/emu.h"
#include "info.h"

static const char help[] =
    "usage: symwin-info [--json] [--root DIR]\n"
    "       symwin-info [--json] --pools | --show FILE\n"
    "\n"
    "Tells what this machine can do for symwin: driver, devices, who reaches whose memory, which\n"
    "handles work (tried with a granule of memory, which is released), IMEX, multicast (only asked\n"
    "about: no multicast object is made), where processes meet, limits of this process.\n"
    "SYMWIN_DRIVER chooses the driver, as for every program with symwin.\n"
    "\n"
    "  --json       the same as JSON\n"
    "  --root DIR   look for /dev and /etc of IMEX under DIR\n"
    "  --show FILE  pools, allocations and windows that a process has written down by\n"
    "               symwin_dump(); -: from standard input\n"
    "  --pools      the same of this process, with a few allocations and a window: an example\n"
    "  --help       this\n"
    "\n"
    "Exit status: 0 where symwin can use every device (or the dump was whole), 1 where it cannot,\n"
    "2 for a wrong command line.\n";

struct options {
    int json, pools;
    const char *root, *show;
};

static int wrong(const char *text, const char *what)
{
    fprintf(stderr, "symwin-info: %s%s; --help names the options\n", text, what);
    return 2;
}

/* -1: go on; else the exit status. */
static int read_options(int argc, char **argv, struct options *o)
{
    int i;

    *o = (struct options){.root = ""};
    for (i = 1; i < argc; i++) {
        const int value = strcmp(argv[i], "--root") == 0 || strcmp(argv[i], "--show") == 0;

        if (value && i + 1 == argc)
            return wrong("a value is missing behind ", argv[i]);
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return fflush(stdout) != 0;
        }
        if (strcmp(argv[i], "--json") == 0)
            o->json = 1;
        else if (strcmp(argv[i], "--pools") == 0)
            o->pools = 1;
        else if (strcmp(argv[i], "--root") == 0)
            o->root = argv[++i];
        else if (strcmp(argv[i], "--show") == 0)
            o->show = argv[++i];
        else
            return wrong("unknown: ", argv[i]);
    }
    if (o->show != NULL && o->pools)
        return wrong("--show and --pools are two different things", "");
    if (o->root[0] != '\0' && (o->show != NULL || o->pools))
        return wrong("--root is for looking at the machine", "");
    return -1;
}

static int show(const struct options *o)
{
    FILE *file = strcmp(o->show, "-") == 0 ? stdin : fopen(o->show, "re");
    int right;

    if (file == NULL) {
        fprintf(stderr, "symwin-info: %s cannot be read: %s\n", o->show, strerror(errno));
        return 1;
    }
    right = info_show(stdout, file, o->show, o->json);
    if (file != stdin)
        fclose(file);
    return !right;
}

static int report(const struct options *o)
{
    static struct info_system system;
    struct info_machine machine;
    int usable = 0;

    if (info_gather(&machine)) {
        info_look(&system, o->root, &machine);
        (o->json ? info_json : info_words)(stdout, &machine, &system);
        usable = info_all_usable(&machine);
    } else {
        fprintf(stderr, "symwin-info: no host memory for lists of devices\n");
    }
    info_release(&machine);
    return !usable;
}

/* What was tried must leave nothing. Only the emulated driver can tell. */
static int left_behind(void)
{
    if (!sw_driver_is_emulated() || sw_emu_live_objects() == 0)
        return 0;
    fprintf(stderr, "symwin-info: a fault of this program: it left\n");
    sw_emu_live_print(2);
    return 1;
}

int main(int argc, char **argv)
{
    struct options o;
    int status = read_options(argc, argv, &o);

    if (status >= 0)
        return status;
    if (o.show != NULL) {
        status = show(&o);
    } else {
        status = o.pools ? !info_sample(stdout, o.json) : report(&o);
        if (left_behind())
            status = 1;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "symwin-info: its output cannot be written: %s\n", strerror(errno));
        status = 1;
    }
    return status;
}
