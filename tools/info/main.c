/* symwin-info: what this machine can do for symwin, and why something will not work. `--help` lists
 * the options. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../emu/emu.h"
#include "info.h"

static const char help[] =
    "usage: symwin-info [--json] [--root DIR]\n"
    "       symwin-info [--table | --json] --pid PID | --show FILE | --pools\n"
    "\n"
    "Tells what this machine can do for symwin: driver, devices, who reaches whose memory, which\n"
    "handles work (tried with a granule of memory, which is released), IMEX, multicast (only "
    "asked\n"
    "about: no multicast object is made), variables with wrong values, where processes meet,\n"
    "limits of this process.\n"
    "SYMWIN_DRIVER chooses the driver, as for every program with symwin.\n"
    "\n"
    "  --json       the same as JSON\n"
    "  --root DIR   look for /dev and /etc of IMEX under DIR\n"
    "  --pid PID    pools, allocations and windows of a running process of this user, which was\n"
    "               started with SYMWIN_INFO=1\n"
    "  --show FILE  the same as a process has written it down by symwin_dump(); -: from standard\n"
    "               input\n"
    "  --pools      the same of this process, with a few allocations and a window: an example\n"
    "  --table      these in tables, each value as symwin_dump() writes it, and not in words\n"
    "  --version    of symwin\n"
    "  --help       this\n"
    "\n"
    "Exit status: 0 where symwin can use every device (or what a process has was shown whole), 1\n"
    "where it cannot or a variable is wrong, 2 for a wrong command line.\n";

struct options {
    int pools;
    enum info_form form;
    int pid; /* 0: none */
    const char *root, *show;
};

static int wrong(const char *text, const char *what)
{
    fprintf(stderr, "symwin-info: %s%s; --help names the options\n", text, what);
    return 2;
}

/* A process id; 0: invalid. */
static int read_pid(const char *text)
{
    char *end = NULL;
    const long pid = strtol(text, &end, 10);

    return text[0] >= '1' && text[0] <= '9' && *end == '\0' && pid <= INT_MAX ? (int)pid : 0;
}

/* Rejects options that exclude each other; -1: none. */
static int check_options(const struct options *o)
{
    const int things = (o->show != NULL) + o->pools + (o->pid != 0);

    if (things > 1)
        return wrong("--pid, --show and --pools are different things", "");
    if (o->root[0] != '\0' && things > 0)
        return wrong("--root is for looking at the machine", "");
    if (o->form == INFO_TABLES && things == 0)
        return wrong("--table is for --pid, --show and --pools", "");
    return -1;
}

/* -1: continue; else the exit status. */
static int read_options(int argc, char **argv, struct options *o)
{
    *o = (struct options){.root = ""};
    for (int i = 1; i < argc; i++) {
        const int value = strcmp(argv[i], "--root") == 0 || strcmp(argv[i], "--show") == 0 ||
                          strcmp(argv[i], "--pid") == 0;

        if (value && i + 1 == argc)
            return wrong("a value is missing behind ", argv[i]);
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("symwin-info (symwin) %s\n", symwin_version());
            return 0;
        }
        if (strcmp(argv[i], "--json") == 0)
            o->form = INFO_JSON;
        else if (strcmp(argv[i], "--table") == 0)
            o->form = INFO_TABLES;
        else if (strcmp(argv[i], "--pools") == 0)
            o->pools = 1;
        else if (strcmp(argv[i], "--root") == 0)
            o->root = argv[++i];
        else if (strcmp(argv[i], "--show") == 0)
            o->show = argv[++i];
        else if (strcmp(argv[i], "--pid") == 0) {
            o->pid = read_pid(argv[++i]);
            if (o->pid == 0)
                return wrong("--pid takes the number of a process, not ", argv[i]);
        } else
            return wrong("unknown: ", argv[i]);
    }
    return check_options(o);
}

static int show(const struct options *o)
{
    FILE *file = strcmp(o->show, "-") == 0 ? stdin : fopen(o->show, "re");
    int right;

    if (file == NULL) {
        fprintf(stderr, "symwin-info: %s cannot be read: %s\n", o->show, strerror(errno));
        return 1;
    }
    right = info_show(stdout, file, file == stdin ? "standard input" : o->show, o->form);
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
        (o->form == INFO_JSON ? info_json : info_words)(stdout, &machine, &system);
        usable = info_nothing_is_wrong(&machine);
    } else {
        fprintf(stderr, "symwin-info: no host memory for lists of devices\n");
    }
    info_release(&machine);
    return !usable;
}

/* Checks that the tests left nothing behind. Only the emulated driver can tell. */
static int left_behind(void)
{
    if (!sw_driver_is_emulated() || sw_emu_live_objects() == 0)
        return 0;
    fprintf(stderr, "symwin-info: a fault of this program: it left\n");
    sw_emu_live_print(2);
    return 1;
}

static int run(int argc, char **argv)
{
    struct options o;
    int status = read_options(argc, argv, &o);

    if (status >= 0)
        return status;
    if (o.show != NULL)
        return show(&o);
    if (o.pid != 0)
        return !info_process(stdout, o.pid, o.form);
    status = o.pools ? !info_sample(stdout, o.form) : report(&o);
    return left_behind() ? 1 : status;
}

int main(int argc, char **argv)
{
    const int status = run(argc, argv);

    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "symwin-info: its output cannot be written: %s\n", strerror(errno));
    return 1;
}
