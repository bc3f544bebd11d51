/*
 * linkdelay: networks of their own for N brokers of this host, and links between them that deliver later.
 *
 *   linkdelay N    N network namespaces; in number i (from 1) the address 10.77.0.i, on a TUN device.
 *
 * stdout: one JSON line {"namespaces":["/proc/PID/fd/K",...]} when all are there.  stdin: a delay in microseconds a line;
 * each packet comes so much later, in order, in each direction (a round trip twice as much).  Each line is answered with
 * the delay on a line.  At the end of stdin the program ends, and the namespaces end with the last process in them.
 *
 * The kernel's netem does the same where a kernel has it.  Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BROKERS_MAX = 16, MTU = 65000, HELD_MAX = 1 << 14, DESTINATION = 16 };

typedef struct {
  int64_t due_ns;
  int to;
  int size;
  char *octets;
} Packet;

static int tuns[BROKERS_MAX], namespaces[BROKERS_MAX], count;
static Packet held[HELD_MAX];
static unsigned first, last; /* of a ring: [first, last) is on its way */
static int64_t delay_ns;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

__attribute__((noreturn)) static void give_up(const char *step) {
  fprintf(stderr, "linkdelay: %s: %s\n", step, strerror(errno));
  exit(1);
}

static void ask(int socket, unsigned long request, struct ifreq *wish, const char *step) {
  if (ioctl(socket, request, wish) < 0) give_up(step);
}

static void set_address(struct ifreq *wish, const char *text) {
  struct sockaddr_in *address = (struct sockaddr_in *)&wish->ifr_addr;
  address->sin_family = AF_INET;
  inet_pton(AF_INET, text, &address->sin_addr);
}

static void raise_device(int socket, const char *name) {
  struct ifreq wish = {.ifr_flags = 0};
  snprintf(wish.ifr_name, sizeof wish.ifr_name, "%s", name);
  ask(socket, SIOCGIFFLAGS, &wish, "flags");
  wish.ifr_flags |= IFF_UP;
  ask(socket, SIOCSIFFLAGS, &wish, "up");
}

static void make_namespace(int number) {
  char address[32];
  snprintf(address, sizeof address, "10.77.0.%d", number + 1);
  if (unshare(CLONE_NEWNET) < 0) give_up("unshare");
  if ((namespaces[number] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) < 0) give_up("namespace");
  if ((tuns[number] = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0) give_up("/dev/net/tun");
  struct ifreq wish = {.ifr_flags = IFF_TUN | IFF_NO_PI};
  ask(tuns[number], TUNSETIFF, &wish, "TUNSETIFF");
  char name[IFNAMSIZ];
  memcpy(name, wish.ifr_name, sizeof name);
  int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  wish.ifr_mtu = MTU;
  ask(control, SIOCSIFMTU, &wish, "mtu");
  wish.ifr_qlen = HELD_MAX;
  ask(control, SIOCSIFTXQLEN, &wish, "queue length");
  set_address(&wish, address);
  ask(control, SIOCSIFADDR, &wish, "address");
  set_address(&wish, "255.255.255.0");
  ask(control, SIOCSIFNETMASK, &wish, "netmask");
  raise_device(control, name);
  raise_device(control, "lo");
  close(control);
}

static void deliver(const Packet *packet) {
  /* A full device drops it, as a network would. */
  if (write(tuns[packet->to], packet->octets, (size_t)packet->size) < 0 && errno != EAGAIN && errno != EIO)
    give_up("write");
  free(packet->octets);
}

static void deliver_due(void) {
  int64_t now = now_ns();
  for (; first != last && held[first % HELD_MAX].due_ns <= now; first++) deliver(&held[first % HELD_MAX]);
}

static void take_from(int number) {
  static char octets[MTU + 64];
  for (;;) {
    if (last - first == HELD_MAX) return; /* the device keeps what has no room here */
    ssize_t size = read(tuns[number], octets, sizeof octets);
    if (size < 0) {
      if (errno != EAGAIN) give_up("read");
      return;
    }
    int to = size > DESTINATION + 3 && octets[0] >> 4 == 4 ? (unsigned char)octets[DESTINATION + 3] - 1 : -1;
    if (to < 0 || to >= count || to == number) continue; /* such as a solicitation of IPv6 */
    Packet packet = {.due_ns = now_ns() + delay_ns, .to = to, .size = (int)size, .octets = malloc((size_t)size)};
    memcpy(packet.octets, octets, (size_t)size);
    held[last++ % HELD_MAX] = packet;
  }
}

static void take_command(void) {
  char line[32] = {0};
  ssize_t size = read(STDIN_FILENO, line, sizeof line - 1);
  if (size <= 0) exit(0);
  delay_ns = strtoll(line, NULL, 10) * 1000;
  printf("%lld\n", (long long)(delay_ns / 1000));
}

int main(int argc, char **argv) {
  count = argc == 2 ? atoi(argv[1]) : 0;
  if (count < 1 || count > BROKERS_MAX) {
    fprintf(stderr, "usage: linkdelay N, with 1 to %d namespaces\n", BROKERS_MAX);
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  prctl(PR_SET_TIMERSLACK, 1UL);
  for (int i = 0; i < count; i++) make_namespace(i);
  printf("{\"namespaces\":[");
  for (int i = 0; i < count; i++) printf("%s\"/proc/%d/fd/%d\"", i ? "," : "", getpid(), namespaces[i]);
  printf("]}\n");
  struct pollfd watched[BROKERS_MAX + 1];
  for (int i = 0; i < count; i++) watched[i] = (struct pollfd){.fd = tuns[i], .events = POLLIN};
  watched[count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
  for (;;) {
    int64_t left_ns = first == last ? 1000000000 : held[first % HELD_MAX].due_ns - now_ns();
    if (left_ns < 0) left_ns = 0;
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    if (ppoll(watched, (nfds_t)count + 1, &left, NULL) < 0 && errno != EINTR) give_up("ppoll");
    for (int i = 0; i < count; i++)
      if (watched[i].revents) take_from(i);
    if (watched[count].revents) take_command();
    deliver_due();
  }
}
