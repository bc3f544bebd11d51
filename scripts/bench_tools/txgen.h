/*
 * What the files of txgen share: options, the state of a client, errors, the clock.
 */
#ifndef TXGEN_H
#define TXGEN_H

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>

#include <amqp.h>
#include <amqp_framing.h>

enum { CHANNEL = 1, QUEUES_MAX = 256, FRAME_MAX = 131072 };

typedef enum { MODE_TX, MODE_CONFIRM, MODE_FLOW, MODE_RPC, MODE_DECLARE, MODE_DELETE, MODE_DEPTH } Mode;

typedef struct {
  Mode mode;
  const char *host, *user, *password, *vhost, *prefix, *queue_type, *dead_letters;
  int port;
  int connections;  /* clients; flow, rpc: producers or requesters, and as many others beside them */
  int messages;     /* per transaction */
  int size;         /* body, bytes */
  int queues;
  int max_length;   /* of each queue; 0: none */
  int window;       /* publishes without confirm, per connection */
  double seconds, warmup, timeout;
  int every_ms;     /* between the begins of two transactions of a connection; 0: no wait */
  int rate;         /* flow: messages a second of all connections together; 0: as fast as they can */
  bool consume;
} Options;

extern Options opt;

/* Set before the clients start and only read afterwards. */
extern int64_t window_begin_us, window_end_us;
extern char queue_names[QUEUES_MAX][64];

extern atomic_bool stopping; /* the load ends */
extern atomic_bool requests_over; /* flow, rpc: no producer or requester waits any more */
extern atomic_bool failed;

typedef struct {
  uint32_t *values; /* microseconds */
  size_t count, capacity;
} Latencies;

typedef struct {
  int number;
  amqp_connection_state_t state;
  pthread_t thread;
  char *body;
  char *received;             /* flow, rpc: the body of the last delivery */
  uint64_t sent;              /* messages published since the start */
  uint64_t settled;           /* of those, committed or confirmed */
  uint64_t acked;             /* deliveries acknowledged; tx: in a committed transaction */
  uint64_t commits, messages; /* completed inside the window */
  Latencies latencies;
  /* tx with --consume: tags received and not yet acknowledged, as a ring */
  uint64_t *tags;
  size_t tag_first, tag_count, tag_capacity;
  uint64_t body_left; /* bytes still to come of the delivery being read */
  /* confirm, flow: publish times of the outstanding tags, index tag % window; 0 = confirmed */
  int64_t *published_us;
  uint64_t lowest; /* lowest unconfirmed tag */
} Client;

int64_t now_us(void);
struct timeval seconds_to_timeval(double seconds);

/* Report the first failure only, and end the load. */
__attribute__((format(printf, 2, 3))) void fail(int connection, const char *format, ...);
const char *describe_method(amqp_method_t method, char *buffer, size_t size);
bool reply_ok(int connection, const char *step, amqp_rpc_reply_t reply);
bool status_ok(int connection, const char *step, int status);

void remember(Latencies *latencies, int64_t us);
/* Note the confirms that basic.ack brings. */
bool take_ack(Client *client, amqp_basic_ack_t *ack, int64_t now);

/* Consumers and loads of the modes flow and rpc (txflow.c). */
bool prepare_flow(Client *client);
bool prepare_rpc(Client *client);
void *run_flow(void *client);
void *run_rpc(void *client);

#endif
