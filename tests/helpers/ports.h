/* A port for TCP that nobody uses: the system's choice, given back. Each call gives another one, as long as the system goes
 * round its range. */
#ifndef SYMWIN_TESTS_PORTS_H
#define SYMWIN_TESTS_PORTS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

HARNESS_UNUSED int ports_free(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof any;

    if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof any) != 0 ||
        getsockname(fd, (struct sockaddr *)&any, &bytes) != 0) {
        perror("ports_free");
        exit(1);
    }
    close(fd);
    return ntohs(any.sin_port);
}

HARNESS_UNUSED void ports_name(char name[16])
{
    snprintf(name, 16, "%d", ports_free());
}

#endif
