#!/usr/bin/env perl
# `make install` into a separate folder, and programs in C99 and C++ that find the library there by
# pkg-config, or by plain flags if pkg-config is not installed.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

my $build = $ENV{SYMWIN_BUILD} || 'build';
my $cc    = $ENV{CC}           || 'gcc';
my $cxx   = $ENV{CXX}          || 'g++';

open my $flags, '<', "$build/flags" or plan skip_all => "no $build/flags: make has not run here";
plan skip_all => 'a sanitizer build is not for installing' if grep /-fsanitize/, <$flags>;

my $root = tempdir(CLEANUP => 1);
my $lib  = "$root/opt/symwin/lib";

sub run {
    my ($command, $name) = @_;
    my $output = `$command 2>&1`;
    is($?, 0, $name) or diag("$command\n$output");
    return $output;
}

sub slurp {
    my ($path) = @_;
    open my $file, '<', $path or return '';
    local $/;
    return scalar <$file>;
}

sub spew {
    my ($path, $text) = @_;
    open my $file, '>', $path or BAIL_OUT("$path: $!");
    print $file $text;
    close $file;
}

# Without the jobserver of a make that runs this test: this shell does not inherit its descriptors.
my $make = 'MAKEFLAGS= MFLAGS= make --no-print-directory';
run("$make -o $build/flags -o $build/flags.cu -o $build/flags.tables -o $build/flags.carried "
        . "BUILD=$build DESTDIR=$root PREFIX=/opt/symwin install", 'make install');

for (['PREFIX=', 'PREFIX is ""'], ['PREFIX=rel', 'PREFIX is "rel"'],
    ["'PREFIX=/x/p q'", 'PREFIX is "/x/p q"'], ['LIBDIR=lib', 'LIBDIR is "lib"'],
    ["'DESTDIR=$root/a b'", "DESTDIR is \"$root/a b\""])
{
    my ($word, $want) = @$_;
    for my $goal ('install', 'uninstall') {
        my $output = `$make BUILD=$build DESTDIR=$root/none $word $goal 2>&1`;
        isnt($?, 0, "make $goal $word is refused");
        like($output, qr/\*\*\* \Q$want\E: give /, 'with a sentence');
    }
}
ok(!-e "$root/none" && !-e 'rel' && !-e 'q', 'before anything is installed');

# ---- the test runner ---------------------------------------------------------------------------

my $output = `tools/run-tests.sh $build test test_types test_nosuch 2>&1`;
is($? >> 8, 1, 'a test that does not exist: exit status');
like(scalar `$make BUILD=$root/none TESTS_ONLY='test_types test_nosuch' test 2>&1`,
    qr/\*\*\* no such test: test_nosuch: TESTS_ONLY takes names/, 'make test says so');
ok(!-e "$root/none/obj", 'before it builds');
is($output, "no such test: test_nosuch\nnothing was run\n", 'is named, and nothing is run');

my ($version) = slurp('symwin.h') =~ /#define SYMWIN_VERSION "(.*)"/;
is(readlink "$lib/libsymwin.so", 'libsymwin.so.0', 'libsymwin.so points to the soname');
is(readlink "$lib/libsymwin.so.0", "libsymwin.so.$version", 'which points to the version');
ok(-s "$lib/libsymwin.a", 'static library');
ok(-x "$lib/libsymwin-nccl.so", "NCCL's allocator");
unlike(scalar `SYMWIN_DRIVER= ldd $lib/libsymwin-nccl.so`, qr/not found/,
    'which finds libsymwin.so');
ok(-s "$root/opt/symwin/include/symwin.h", 'header');
ok(-s "$root/opt/symwin/include/symwin/device.cuh", 'device header');
like(run("SYMWIN_DRIVER=emu $root/opt/symwin/bin/symwin-info", 'symwin-info runs there'),
    qr/libsymwin \Q$version\E/, 'and is of this version');

# ---- the shared library ------------------------------------------------------------------------

my $dynamic = `readelf -dW $lib/libsymwin.so`;
like($dynamic, qr/SONAME.*\[libsymwin\.so\.0\]/, 'soname');
my @needed = $dynamic =~ /NEEDED.*\[(.*?)\]/g;
is("@{[grep { !/^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so\.\d+$/ } @needed]}", '',
    "needs nothing but libc (needs @needed)");

my ($global) = slurp('symwin.map') =~ /global:(.*?)local:/s;
my $want    = join ' ', sort $global =~ /(\w+);/g;
my $symbols = `nm -D --defined-only $lib/libsymwin.so`;
is(join(' ', sort map { / [TDBRVW] (symwin_\w+|\w+)\@\@SYMWIN_0\.1$/ ? $1 : () }
            split /\n/, $symbols),
    $want, 'exports symwin.map');
is(join(' ', grep { !/\@\@SYMWIN_0\.1$/ && !/ A SYMWIN_0\.1$/ } split /\n/, $symbols), '',
    'and nothing else');

# ---- programs ----------------------------------------------------------------------------------

my $program = <<'END';
#include <stdio.h>
#include <string.h>
#include <symwin.h>

int main(void)
{
    symwin_driver_info driver;
    void *memory = NULL;

    if (strcmp(symwin_version(), SYMWIN_VERSION) != 0)
        return 2;
    if (symwin_driver_query(&driver) != SYMWIN_OK ||
        symwin_mem_alloc(0, 1 << 20, 0, &memory) != SYMWIN_OK ||
        symwin_mem_free(memory) != SYMWIN_OK) {
        printf("%s\n", symwin_last_error());
        return 3;
    }
    printf("driver %s\n", driver.name);
    return 0;
}
END
spew("$root/program.c",   $program);
spew("$root/program.cpp", $program);

my ($cflags, $libs, $static) = ("-I$root/opt/symwin/include", "-L$lib -lsymwin",
    "$lib/libsymwin.a -pthread -ldl -lm");
my $config = "PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$lib/pkgconfig pkg-config";
SKIP: {
    skip 'pkg-config is not installed', 2 unless grep { -x "$_/pkg-config" } split /:/, $ENV{PATH};
    is(`$config --modversion symwin` =~ s/\s+$//r, $version, 'pkg-config knows the version');
    my $found = `$config --cflags --libs symwin` =~ s/\s+$//r;
    is($found =~ s/\s+/ /gr, "$cflags $libs", 'pkg-config gives the flags');
}
like(slurp("$lib/pkgconfig/symwin.pc"), qr/^Version: \Q$version\E$/m, 'symwin.pc has the version');
unlike(slurp("$lib/pkgconfig/symwin.pc"), qr/\@\w+\@|\Q$root\E/, 'symwin.pc is filled in');

my $warn = '-Wall -Wextra -Wpedantic -Werror';
for (['C99, shared', "$cc -std=c99", 'program.c', $libs],
    ['C99, static', "$cc -std=c99", 'program.c', $static],
    ['C++, shared', "$cxx -std=c++11", 'program.cpp', $libs],
    ['C++, static', "$cxx -std=c++11", 'program.cpp', $static])
{
    my ($name, $compiler, $source, $link) = @$_;
    run("$compiler $warn $cflags -o $root/program $root/$source $link", "builds: $name");
    is(run("SYMWIN_DRIVER=emu LD_LIBRARY_PATH=$lib $root/program", "runs: $name"), "driver emu\n",
        "on the emulated driver: $name");
}

my ($sample) = slurp('docs/using.md') =~ /^```c\n(.*?)^```$/ms;
spew("$root/sample.c", $sample // '');
for ("$cc -std=c99", "$cc -std=c11", "$cxx -x c++ -std=c++17") {
    run("$_ -D_DEFAULT_SOURCE $warn $cflags -o $root/sample $root/sample.c $libs -pthread",
        "builds: the sample of docs/using.md by $_");
    is(run("SYMWIN_DRIVER=emu LD_LIBRARY_PATH=$lib $root/sample", 'runs'), '',
        'without a complaint');
}

# One rank's call fails: the program reports it, also by its exit status, and the other rank does
# not wait for ever.
my @calls = $sample =~ /status = (symwin_\w+)\(/g;
cmp_ok(scalar @calls, '>=', 6, 'the sample makes calls');
for my $call (@calls) {
    spew("$root/fail.c", <<"END");
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

const char *__wrap_symwin_last_error(void);
const char *__real_symwin_last_error(void);
int __wrap_$call(void *a, void *b, void *c, void *d, void *e, void *f, void *g);
int __real_$call(void *a, void *b, void *c, void *d, void *e, void *f, void *g);

static atomic_int calls;
static _Thread_local int failed;

int __wrap_$call(void *a, void *b, void *c, void *d, void *e, void *f, void *g)
{
    failed = atomic_fetch_add(&calls, 1) == 1;
    return failed ? 9 : __real_$call(a, b, c, d, e, f, g);
}

const char *__wrap_symwin_last_error(void)
{
    return failed ? "it was made to fail" : __real_symwin_last_error();
}
END
    run("$cc -D_DEFAULT_SOURCE $cflags -o $root/failing $root/sample.c $root/fail.c "
          . "-Wl,--wrap=$call -Wl,--wrap=symwin_last_error $libs -pthread",
        "builds: the sample whose second $call fails");
    my $begin  = time;
    my $environment = "SYMWIN_DRIVER=emu SYMWIN_BOOTSTRAP_TIMEOUT_MS=2000 LD_LIBRARY_PATH=$lib";
    my $output = `$environment timeout 30 $root/failing 2>&1`;
    is($? >> 8, 1, 'its exit status');
    cmp_ok(time - $begin, '<', 15, 'it does not hang');
    my ($one) = $output =~ /^rank ([01]): it was made to fail$/m;
    my $other = $one ? 0 : 1;
    ok(defined $one, 'that rank says why');
    like($output, qr/^rank $other: symwin_.*/m, 'and the other one what it knows')
      if $call ne 'symwin_stream_synchronize' && $call ne 'symwin_comm_check';
}

run("$make BUILD=$build DESTDIR=$root PREFIX=/opt/symwin uninstall", 'make uninstall');
is(`find $root/opt -type f -o -type l`, '', 'leaves nothing');

done_testing();
