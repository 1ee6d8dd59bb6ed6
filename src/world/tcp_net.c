/* Sockets of the world over TCP: addresses, interfaces, listening, connecting, and the identity of a host. */
#define _GNU_SOURCE
#include "tcp.h"
#include "base_impl.h"
#include "text.h"
#include "watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

const char hvt__tcp_magic[8] = "hvtrain1";

socklen_t hvt__address_bytes(const hvt__address *a)
{
    return a->any.sa_family == AF_INET6 ? sizeof a->v6 : sizeof a->v4;
}

int hvt__address_port(const hvt__address *a)
{
    return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

void hvt__address_set_port(hvt__address *a, int port)
{
    if (a->any.sa_family == AF_INET6)
        a->v6.sin6_port = htons((uint16_t)port);
    else
        a->v4.sin_port = htons((uint16_t)port);
}

/* A socket for both families shows an IPv4 peer as ::ffff:10.0.7.1. */
static bool is_mapped(const hvt__address *a)
{
    return a->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr);
}

void hvt__address_text(const hvt__address *a, char ret_text[HVT__ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool v6 = a->any.sa_family == AF_INET6 && !is_mapped(a);

    if (v6)
        inet_ntop(AF_INET6, &a->v6.sin6_addr, host, sizeof host);
    else
        inet_ntop(AF_INET, is_mapped(a) ? (const void *)&a->v6.sin6_addr.s6_addr[12] : &a->v4.sin_addr, host,
                  sizeof host);
    snprintf(ret_text, HVT__ADDRESS_TEXT, v6 ? "[%s]:%d" : "%s:%d", host, hvt__address_port(a));
}

bool hvt__address_is_loopback(const hvt__address *a)
{
    if (is_mapped(a))
        return a->v6.sin6_addr.s6_addr[12] == 127;
    if (a->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
    return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
}

hvt_status hvt__interface_address(const char *name, int family, hvt__address *ret_address)
{
    struct ifaddrs *all = NULL;
    hvt__text known = {.used = 0};
    bool found = false;

    HVT_CHECK(!getifaddrs(&all), E_COMM, "network interfaces: %s", strerror(errno));
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        int is = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;

        if (is != AF_INET && is != AF_INET6)
            continue;
        if (!strstr(known.at, i->ifa_name))
            hvt__text_add(&known, "%s%s", known.used ? ", " : "", i->ifa_name);
        if (found || strcmp(i->ifa_name, name) || (family != AF_UNSPEC && is != family))
            continue;
        memcpy(ret_address, i->ifa_addr, is == AF_INET6 ? sizeof ret_address->v6 : sizeof ret_address->v4);
        found = !(is == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ret_address->v6.sin6_addr));
    }
    freeifaddrs(all);
    HVT_CHECK(found, E_ARG, "no network interface '%s' with an %s address here; there are %s", name,
              family == AF_INET6  ? "IPv6"
              : family == AF_INET ? "IPv4"
                                  : "IP",
              known.at);
    return HVT_OK;
}

int hvt__look_up(const char *host, int port, hvt__address *ret, int most, const char **ret_why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    char service[16];
    int error, n = 0;

    snprintf(service, sizeof service, "%d", port);
    error = getaddrinfo(host, service, &hints, &all);
    *ret_why = error ? gai_strerror(error) : "no address";
    for (const struct addrinfo *i = error ? NULL : all; i && n < most; i = i->ai_next)
        if (i->ai_family == AF_INET || i->ai_family == AF_INET6)
            memcpy(&ret[n++], i->ai_addr, i->ai_addrlen);
    if (!error)
        freeaddrinfo(all);
    return n;
}

static int open_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int hvt__listen(const hvt__address *at, int port)
{
    hvt__address any = {.v6 = {.sin6_family = AF_INET6}};
    const int on = 1, off = 0;
    int fd, why;

    if (at)
        any = *at;
    hvt__address_set_port(&any, port);
    fd = open_socket(any.any.sa_family);
    if (fd < 0 && !at) { /* a kernel without IPv6 */
        any = (hvt__address){.v4 = {.sin_family = AF_INET}};
        hvt__address_set_port(&any, port);
        fd = open_socket(AF_INET);
    }
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!at && any.any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, &any.any, hvt__address_bytes(&any)) && !listen(fd, SOMAXCONN))
        return fd;
    why = errno;
    close(fd);
    errno = why;
    return -1;
}

static bool await(int fd, short events, double until)
{
    struct pollfd p = {.fd = fd, .events = events};
    double left;

    while ((left = until - hvt__now()) > 0) {
        int n = poll(&p, 1, (int)ceil(1e3 * fmin(left, 1e3)));

        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
    errno = ETIMEDOUT;
    return false;
}

int hvt__connect(const hvt__address *to, const hvt__address *from, double seconds)
{
    int fd = open_socket(to->any.sa_family), error = 0;
    socklen_t bytes = sizeof error;
    hvt__address own;

    if (fd < 0)
        return -1;
    if (from && from->any.sa_family == to->any.sa_family) {
        own = *from;
        hvt__address_set_port(&own, 0);
        if (bind(fd, &own.any, hvt__address_bytes(&own)))
            error = errno;
    }
    if (!error && connect(fd, &to->any, hvt__address_bytes(to))) {
        error = errno;
        if (error == EINPROGRESS) {
            error = 0;
            if (!await(fd, POLLOUT, hvt__now() + seconds) ||
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes))
                error = errno;
        }
    }
    if (!error)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

void hvt__connection_options(int fd)
{
    const double most = hvt__watch_default.abort > 0 ? hvt__watch_default.abort : 300;
    const int on = 1, ms = (int)fmin(1e3 * most, INT_MAX), idle = (int)fmax(1, fmin(most / 4, 30)),
              probes = (int)fmax(2, fmin(most / idle - 1, 100));

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

bool hvt__send_all(int fd, const void *data, size_t bytes, double seconds)
{
    const double until = hvt__now() + seconds;

    for (size_t at = 0; at < bytes;) {
        ssize_t n = send(fd, (const char *)data + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n > 0)
            at += (size_t)n;
        else if (errno == EAGAIN ? !await(fd, POLLOUT, until) : errno != EINTR)
            return false;
    }
    return true;
}

bool hvt__recv_all(int fd, void *data, size_t bytes, double seconds)
{
    const double until = hvt__now() + seconds;

    for (size_t at = 0; at < bytes;) {
        ssize_t n = recv(fd, (char *)data + at, bytes - at, MSG_DONTWAIT);

        if (n > 0) {
            at += (size_t)n;
        } else if (n == 0) {
            errno = 0;
            return false;
        } else if (errno == EAGAIN ? !await(fd, POLLIN, until) : errno != EINTR) {
            return false;
        }
    }
    return true;
}

uint64_t hvt__host_id(void)
{
    static const char *const spaces[] = {"/proc/self/ns/pid", "/proc/self/ns/net"};
    char text[HVT__HOST_NAME] = "";
    struct stat st;
    uint64_t h = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f && fgets(text, sizeof text, f))
        h = hvt__hash_text(h, text);
    if (f)
        fclose(f);
    gethostname(text, sizeof text - 1);
    h = hvt__hash_text(h, text);
    for (size_t i = 0; i < HVT_LEN(spaces); i++)
        if (!stat(spaces[i], &st))
            h = hvt__hash(h, &st.st_ino, sizeof st.st_ino);
    return h;
}

void hvt__random_secret(unsigned char ret_secret[HVT__SECRET])
{
    uint64_t word[2] = {(uint64_t)getpid() << 32, (uint64_t)(1e9 * hvt__now())};

    if (getrandom(ret_secret, HVT__SECRET, 0) == HVT__SECRET)
        return;
    memcpy(ret_secret, word, sizeof word);
}

bool hvt__secret_parse(const char *text, unsigned char ret_secret[HVT__SECRET])
{
    uint64_t word[2];

    word[0] = hvt__hash_text(1, text);
    word[1] = hvt__hash_text(word[0] + 2, text);
    memcpy(ret_secret, word, sizeof word);
    return *text;
}
