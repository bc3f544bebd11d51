/*
 * txgen: the load generator of scripts/bench, one program for both brokers.
 *
 * One thread and one AMQP connection per client, blocking calls of librabbitmq, nothing clever: what it sends
 * is what an ordinary C client sends (one write per frame group, TCP_NODELAY), so no broker is favoured by
 * batching that real clients do not do.  The bench measures brokers, so the program also states its own CPU.
 *
 * Modes
 *   tx       tx.select once; then for ever: publish M persistent messages to queues taken in turn from Q durable
 *            queues, tx.commit, wait for commit-ok.  A transaction of M >= Q messages touches all Q queues;
 *            M = 1 touches one, another one each time.  With --consume every transaction also acknowledges up to
 *            M deliveries received before it, which keeps the queues short.  With --every-ms T a connection begins a
 *            transaction every T ms, not as soon as the last one is answered; the connections are spread over T.
 *   confirm  confirm.select once; publish so that tag - (lowest unconfirmed tag) stays below W.
 *   flow     the same, and other connections consume (txflow.c).
 *   rpc      requests and replies (txflow.c).
 *   declare  delete the queues if they are there, declare them durable and empty.
 *   delete   delete the queues.
 *   depth    one JSON line with the ready messages of each queue.
 *
 * Time
 *   All clients start together; the window [start + warm-up, start + warm-up + seconds) is fixed before they start.
 *   What *completes* inside the window counts (commit-ok read, confirm read), whatever was sent before it.
 *   A commit's latency runs from just before tx.commit is sent to commit-ok read; a confirm's from just before the
 *   publish to the confirm read.  All latencies are kept (4 bytes each) and sorted: percentiles are exact.
 *
 * Output
 *   stdout: {"event":"measuring"} when the window opens, {"event":"measured"} when it closes (the caller reads the
 *   brokers' CPU at those moments), last {"event":"result",...}.  Errors: one line on stderr naming connection,
 *   step, reply code and text; exit code 1.  Exit code 2 is a usage error.
 *
 * Checks made on the broker: nothing may be returned, no nack, every confirm names an outstanding tag, no reply
 * later than --timeout seconds.  Any of these ends the run with an error rather than a figure.
 *
 * Refused: an epoll loop with hand-made frames (it was not needed: 32 threads in one process use a small part of one
 * core), and writing a whole transaction in one call (kind to a broker that reads big chunks).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <amqp_tcp_socket.h>

#include "txgen.h"

int64_t window_begin_us, window_end_us;
char queue_names[QUEUES_MAX][64];

atomic_bool stopping, requests_over;
static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_bool failed;

Options opt = {
    .mode = MODE_TX, .host = "127.0.0.1", .user = "guest", .password = "guest", .vhost = "/", .prefix = "bench",
    .queue_type = NULL, .port = 5672, .connections = 1, .messages = 1, .size = 1024, .queues = 4, .window = 1000,
    .seconds = 5, .warmup = 2, .timeout = 30, .consume = false,
};

int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Report the first failure only: the others are mostly its consequences. */
void fail(int connection, const char *format, ...) {
  pthread_mutex_lock(&failure_lock);
  if (!failed) {
    failed = true;
    va_list arguments;
    va_start(arguments, format);
    if (connection >= 0)
      fprintf(stderr, "txgen: connection %d: ", connection);
    else
      fprintf(stderr, "txgen: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
  }
  pthread_mutex_unlock(&failure_lock);
  atomic_store(&stopping, true);
}

/* What went wrong, in words: a closed channel or connection with its code and text, else the library's own. */
const char *describe_method(amqp_method_t method, char *buffer, size_t size) {
  if (method.id == AMQP_CHANNEL_CLOSE_METHOD) {
    amqp_channel_close_t *m = method.decoded;
    snprintf(buffer, size, "channel closed by the broker: %d %.*s", m->reply_code, (int)m->reply_text.len,
             (char *)m->reply_text.bytes);
  } else if (method.id == AMQP_CONNECTION_CLOSE_METHOD) {
    amqp_connection_close_t *m = method.decoded;
    snprintf(buffer, size, "connection closed by the broker: %d %.*s", m->reply_code, (int)m->reply_text.len,
             (char *)m->reply_text.bytes);
  } else {
    const char *name = amqp_method_name(method.id);
    snprintf(buffer, size, "unexpected method %s (0x%08X)", name ? name : "?", method.id);
  }
  return buffer;
}

bool reply_ok(int connection, const char *step, amqp_rpc_reply_t reply) {
  char text[512];
  switch (reply.reply_type) {
  case AMQP_RESPONSE_NORMAL:
    return true;
  case AMQP_RESPONSE_LIBRARY_EXCEPTION:
    fail(connection, "%s: %s", step, amqp_error_string2(reply.library_error));
    return false;
  case AMQP_RESPONSE_SERVER_EXCEPTION:
    fail(connection, "%s: %s", step, describe_method(reply.reply, text, sizeof text));
    return false;
  default:
    fail(connection, "%s: no reply", step);
    return false;
  }
}

bool status_ok(int connection, const char *step, int status) {
  if (status == AMQP_STATUS_OK) return true;
  fail(connection, "%s: %s", step, amqp_error_string2(status));
  return false;
}

void remember(Latencies *latencies, int64_t us) {
  if (latencies->count == latencies->capacity) {
    latencies->capacity = latencies->capacity ? latencies->capacity * 2 : 4096;
    latencies->values = realloc(latencies->values, latencies->capacity * sizeof *latencies->values);
    if (!latencies->values) abort();
  }
  latencies->values[latencies->count++] = us < 0 ? 0 : us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

struct timeval seconds_to_timeval(double seconds) {
  return (struct timeval){(time_t)seconds, (suseconds_t)((seconds - floor(seconds)) * 1e6)};
}

/* ---- connections ------------------------------------------------------------------------------------------------ */

/* The library says "a socket error occurred" whatever it was; ask the kernel again, for its errno. */
static const char *why_no_connection(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
  if (inet_pton(AF_INET, opt.host, &address.sin_addr) != 1) return "host unknown or not IPv4 in digits";
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return strerror(errno);
  const char *text = connect(fd, (struct sockaddr *)&address, sizeof address) == 0
                         ? "the port answers now; it did not when asked" : strerror(errno);
  close(fd);
  return text;
}

static amqp_connection_state_t open_connection(int number) {
  amqp_connection_state_t state = amqp_new_connection();
  amqp_socket_t *socket = state ? amqp_tcp_socket_new(state) : NULL;
  if (!socket) {
    fail(number, "out of memory");
    return NULL;
  }
  struct timeval timeout = seconds_to_timeval(opt.timeout);
  int status = amqp_socket_open_noblock(socket, opt.host, opt.port, &timeout);
  if (status != AMQP_STATUS_OK) {
    fail(number, "connect to %s:%d: %s (%s)", opt.host, opt.port, amqp_error_string2(status), why_no_connection());
    return NULL;
  }
  amqp_set_handshake_timeout(state, &timeout);
  amqp_set_rpc_timeout(state, &timeout);
  /* No heartbeat: a run is short and the library would only look at the clock between our own calls. */
  if (!reply_ok(number, "login",
                amqp_login(state, opt.vhost, 0, FRAME_MAX, 0, AMQP_SASL_METHOD_PLAIN, opt.user, opt.password)))
    return NULL;
  amqp_channel_open(state, CHANNEL);
  if (!reply_ok(number, "channel.open", amqp_get_rpc_reply(state))) return NULL;
  return state;
}

static void close_connection(amqp_connection_state_t state) {
  struct timeval timeout = {5, 0};
  amqp_set_rpc_timeout(state, &timeout);
  amqp_connection_close(state, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(state);
}

static bool start_consumers(Client *client) {
  /* Enough for the broker to keep one transaction's worth per queue on the way. */
  int prefetch = opt.messages < 10 ? 10 : opt.messages;
  amqp_basic_qos(client->state, CHANNEL, 0, (uint16_t)(prefetch > 65535 ? 65535 : prefetch), 0);
  if (!reply_ok(client->number, "basic.qos", amqp_get_rpc_reply(client->state))) return false;
  client->tag_capacity = (size_t)prefetch * opt.queues + 1;
  client->tags = calloc(client->tag_capacity, sizeof *client->tags);
  for (int i = 0; i < opt.queues; i++) {
    amqp_basic_consume(client->state, CHANNEL, amqp_cstring_bytes(queue_names[i]), amqp_empty_bytes, 0, 0, 0,
                       amqp_empty_table);
    if (!reply_ok(client->number, "basic.consume", amqp_get_rpc_reply(client->state))) return false;
  }
  return true;
}

static bool prepare(Client *client) {
  client->state = open_connection(client->number);
  if (!client->state) return false;
  client->body = malloc(opt.size + 1);
  uint32_t random = 2463534242u + (uint32_t)client->number;
  for (int i = 0; i < opt.size; i++) { /* xorshift: a body that does not compress */
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    client->body[i] = (char)random;
  }
  if (opt.mode == MODE_TX) {
    amqp_tx_select(client->state, CHANNEL);
    return reply_ok(client->number, "tx.select", amqp_get_rpc_reply(client->state)) &&
           (!opt.consume || start_consumers(client));
  }
  if (opt.mode == MODE_RPC) return prepare_rpc(client);
  amqp_confirm_select(client->state, CHANNEL);
  client->published_us = calloc(opt.window, sizeof *client->published_us);
  client->lowest = 1;
  return reply_ok(client->number, "confirm.select", amqp_get_rpc_reply(client->state)) &&
         (opt.mode != MODE_FLOW || prepare_flow(client));
}

static bool publish_one(Client *client) {
  /* Each client starts at another queue, so that single-message transactions spread as well. */
  const char *queue = queue_names[(client->sent + client->number) % opt.queues];
  if (opt.size >= 16) { /* a stamp, so that no two messages are alike */
    uint64_t stamp[2] = {(uint64_t)client->number, client->sent};
    memcpy(client->body, stamp, sizeof stamp);
  }
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
  amqp_bytes_t body = {.len = opt.size, .bytes = client->body};
  client->sent++;
  return status_ok(client->number, "basic.publish",
                   amqp_basic_publish(client->state, CHANNEL, amqp_empty_bytes, amqp_cstring_bytes(queue), 0, 0,
                                      &properties, body));
}

/* ---- tx --------------------------------------------------------------------------------------------------------- */

static bool take_delivery(Client *client, amqp_basic_deliver_t *deliver) {
  if (client->tag_count == client->tag_capacity) {
    fail(client->number, "more deliveries than the prefetch allows (%zu)", client->tag_capacity);
    return false;
  }
  client->tags[(client->tag_first + client->tag_count++) % client->tag_capacity] = deliver->delivery_tag;
  return true;
}

/* Read frames until the method `awaited` comes; deliveries that come before it are noted.
 * Returns false after a failure has been reported. */
static bool read_until(Client *client, amqp_method_number_t awaited, const char *step) {
  for (;;) {
    struct timeval timeout = seconds_to_timeval(opt.timeout);
    amqp_frame_t frame;
    int status = amqp_simple_wait_frame_noblock(client->state, &frame, &timeout);
    if (status == AMQP_STATUS_TIMEOUT) {
      fail(client->number, "%s: no answer within %.0f s", step, opt.timeout);
      return false;
    }
    if (!status_ok(client->number, step, status)) return false;
    if (frame.frame_type != AMQP_FRAME_METHOD) continue; /* header and body of a delivery */
    amqp_method_t method = frame.payload.method;
    if (method.id == awaited) return true;
    if (method.id == AMQP_BASIC_DELIVER_METHOD) {
      if (!take_delivery(client, method.decoded)) return false;
    } else if (method.id == AMQP_BASIC_RETURN_METHOD) {
      fail(client->number, "%s: a message was returned", step);
      return false;
    } else {
      char text[512];
      fail(client->number, "%s: %s", step, describe_method(method, text, sizeof text));
      return false;
    }
  }
}

static bool acknowledge_some(Client *client, uint64_t *acks) {
  for (*acks = 0; *acks < (uint64_t)opt.messages && client->tag_count > 0; ++*acks) {
    uint64_t tag = client->tags[client->tag_first];
    client->tag_first = (client->tag_first + 1) % client->tag_capacity;
    client->tag_count--;
    if (!status_ok(client->number, "basic.ack", amqp_basic_ack(client->state, CHANNEL, tag, 0))) return false;
  }
  return true;
}

/* Sleep until the transaction that is due at *due_us; the next one is due --every-ms later.  One that was late is not
 * made up for: its client would send several at once. */
static void await_due(int64_t *due_us) {
  struct timespec due = {*due_us / 1000000, *due_us % 1000000 * 1000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) continue;
  *due_us += (int64_t)opt.every_ms * 1000;
  if (*due_us < now_us()) *due_us = now_us();
}

static void *run_tx(void *argument) {
  Client *client = argument;
  int64_t due_us = now_us() + (int64_t)opt.every_ms * 1000 * client->number / opt.connections;
  while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
    uint64_t acks = 0;
    if (opt.every_ms) await_due(&due_us);
    for (int i = 0; i < opt.messages; i++)
      if (!publish_one(client)) return NULL;
    if (opt.consume && !acknowledge_some(client, &acks)) return NULL;
    int64_t asked = now_us();
    amqp_tx_commit_t commit = {0};
    if (!status_ok(client->number, "tx.commit", amqp_send_method(client->state, CHANNEL, AMQP_TX_COMMIT_METHOD, &commit)))
      return NULL;
    if (!read_until(client, AMQP_TX_COMMIT_OK_METHOD, "tx.commit")) return NULL;
    int64_t answered = now_us();
    client->settled += opt.messages;
    client->acked += acks;
    if (answered >= window_begin_us && answered < window_end_us) {
      client->commits++;
      client->messages += opt.messages;
      remember(&client->latencies, answered - asked);
    }
    amqp_maybe_release_buffers(client->state);
  }
  return NULL;
}

/* ---- confirm ---------------------------------------------------------------------------------------------------- */

static bool confirm_tag(Client *client, uint64_t tag, int64_t answered) {
  int64_t *published = &client->published_us[tag % opt.window];
  if (tag < client->lowest || tag > client->sent || *published == 0) {
    fail(client->number, "confirm of tag %" PRIu64 ", which is not outstanding (lowest %" PRIu64 ", last %" PRIu64 ")",
         tag, client->lowest, client->sent);
    return false;
  }
  if (opt.mode == MODE_CONFIRM && answered >= window_begin_us && answered < window_end_us) {
    client->messages++;
    remember(&client->latencies, answered - *published);
  }
  *published = 0;
  client->settled++;
  return true;
}

bool take_ack(Client *client, amqp_basic_ack_t *ack, int64_t answered) {
  if (ack->multiple) {
    uint64_t last = ack->delivery_tag ? ack->delivery_tag : client->sent;
    if (last > client->sent) {
      fail(client->number, "confirm up to tag %" PRIu64 ", but %" PRIu64 " was the last sent", last, client->sent);
      return false;
    }
    for (uint64_t tag = client->lowest; tag <= last; tag++)
      if (client->published_us[tag % opt.window] != 0 && !confirm_tag(client, tag, answered)) return false;
  } else if (!confirm_tag(client, ack->delivery_tag, answered)) {
    return false;
  }
  while (client->lowest <= client->sent && client->published_us[client->lowest % opt.window] == 0) client->lowest++;
  return true;
}

/* Read one frame; `seconds` 0 only looks whether there is one.  Returns 1 read, 0 none, -1 failed. */
static int read_confirm(Client *client, double seconds) {
  struct timeval timeout = seconds_to_timeval(seconds);
  amqp_frame_t frame;
  int status = amqp_simple_wait_frame_noblock(client->state, &frame, &timeout);
  if (status == AMQP_STATUS_TIMEOUT) {
    if (seconds == 0) return 0;
    fail(client->number, "no confirm within %.0f s (%" PRIu64 " outstanding)", opt.timeout,
         client->sent - client->settled);
    return -1;
  }
  if (!status_ok(client->number, "waiting for confirms", status)) return -1;
  if (frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == AMQP_BASIC_ACK_METHOD)
    return take_ack(client, frame.payload.method.decoded, now_us()) ? 1 : -1;
  char text[512];
  if (frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == AMQP_BASIC_NACK_METHOD)
    fail(client->number, "the broker refused a message (basic.nack)");
  else if (frame.frame_type == AMQP_FRAME_METHOD)
    fail(client->number, "waiting for confirms: %s", describe_method(frame.payload.method, text, sizeof text));
  else
    fail(client->number, "waiting for confirms: unexpected frame of type %d", frame.frame_type);
  return -1;
}

static void *run_confirm(void *argument) {
  Client *client = argument;
  while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
    while (client->sent + 1 - client->lowest < (uint64_t)opt.window) {
      client->published_us[(client->sent + 1) % opt.window] = now_us();
      if (!publish_one(client)) return NULL;
      /* Look for confirms now and then, else a broker faster than us would never be read. */
      if (client->sent % 64 == 0) {
        int got;
        while ((got = read_confirm(client, 0)) > 0) continue;
        if (got < 0) return NULL;
        if (atomic_load_explicit(&stopping, memory_order_relaxed)) break;
      }
    }
    int got = read_confirm(client, opt.timeout);
    while (got > 0) got = read_confirm(client, 0);
    if (got < 0) return NULL;
    amqp_maybe_release_buffers(client->state);
  }
  while (client->settled < client->sent && !failed)
    if (read_confirm(client, opt.timeout) < 0) break;
  return NULL;
}

/* ---- queues ----------------------------------------------------------------------------------------------------- */

typedef enum { QUEUE_ABSENT, QUEUE_PRESENT, QUEUE_ASK_FAILED } Presence;

/* Asked with a passive declare, whose 404 closes the channel: it is opened anew.  Deleting blindly was refused: the
 * specification answers 404 for a queue that is not there, RabbitMQ answers ok. */
static Presence find_queue(amqp_connection_state_t state, const char *name) {
  amqp_queue_declare(state, CHANNEL, amqp_cstring_bytes(name), 1, 1, 0, 0, amqp_empty_table);
  amqp_rpc_reply_t reply = amqp_get_rpc_reply(state);
  if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD &&
      ((amqp_channel_close_t *)reply.reply.decoded)->reply_code == AMQP_NOT_FOUND) {
    amqp_channel_close_ok_t closed = {0};
    if (!status_ok(-1, "channel.close-ok", amqp_send_method(state, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &closed)))
      return QUEUE_ASK_FAILED;
    amqp_channel_open(state, CHANNEL);
    return reply_ok(-1, "channel.open", amqp_get_rpc_reply(state)) ? QUEUE_ABSENT : QUEUE_ASK_FAILED;
  }
  return reply_ok(-1, "queue.declare (passive)", reply) ? QUEUE_PRESENT : QUEUE_ASK_FAILED;
}

static bool delete_queue(amqp_connection_state_t state, const char *name) {
  Presence presence = find_queue(state, name);
  if (presence != QUEUE_PRESENT) return presence == QUEUE_ABSENT;
  amqp_queue_delete(state, CHANNEL, amqp_cstring_bytes(name), 0, 0);
  return reply_ok(-1, "queue.delete", amqp_get_rpc_reply(state));
}

static bool delete_queues(amqp_connection_state_t state) {
  for (int i = 0; i < opt.queues; i++)
    if (!delete_queue(state, queue_names[i])) return false;
  return !opt.dead_letters || delete_queue(state, opt.dead_letters);
}

static void set_text(amqp_table_t *table, const char *key, const char *value) {
  amqp_table_entry_t *entry = &table->entries[table->num_entries++];
  entry->key = amqp_cstring_bytes(key);
  entry->value.kind = AMQP_FIELD_KIND_UTF8;
  entry->value.value.bytes = amqp_cstring_bytes(value);
}

static bool declare_queues(amqp_connection_state_t state) {
  amqp_table_entry_t entries[4];
  amqp_table_t arguments = {0, entries};
  if (opt.queue_type) set_text(&arguments, "x-queue-type", opt.queue_type);
  if (opt.max_length) {
    amqp_table_entry_t *entry = &entries[arguments.num_entries++];
    entry->key = amqp_cstring_bytes("x-max-length");
    entry->value.kind = AMQP_FIELD_KIND_I32;
    entry->value.value.i32 = opt.max_length;
  }
  if (!delete_queues(state)) return false;
  if (opt.dead_letters) {
    set_text(&arguments, "x-dead-letter-exchange", "");
    set_text(&arguments, "x-dead-letter-routing-key", opt.dead_letters);
    amqp_queue_declare(state, CHANNEL, amqp_cstring_bytes(opt.dead_letters), 0, 1, 0, 0, amqp_empty_table);
    if (!reply_ok(-1, "queue.declare", amqp_get_rpc_reply(state))) return false;
  }
  for (int i = 0; i < opt.queues; i++) {
    amqp_queue_declare(state, CHANNEL, amqp_cstring_bytes(queue_names[i]), 0, 1, 0, 0, arguments);
    if (!reply_ok(-1, "queue.declare", amqp_get_rpc_reply(state))) return false;
  }
  return true;
}

static bool print_depths(amqp_connection_state_t state) {
  uint64_t total = 0;
  printf("{\"event\":\"depth\",\"queues\":{");
  for (int i = 0; i < opt.queues; i++) {
    amqp_queue_declare_ok_t *ok =
        amqp_queue_declare(state, CHANNEL, amqp_cstring_bytes(queue_names[i]), 1, 1, 0, 0, amqp_empty_table);
    if (!reply_ok(-1, "queue.declare (passive)", amqp_get_rpc_reply(state))) return false;
    printf("%s\"%s\":%u", i ? "," : "", queue_names[i], ok->message_count);
    total += ok->message_count;
  }
  printf("},\"total\":%" PRIu64 "}\n", total);
  return true;
}

static int run_queue_command(void) {
  amqp_connection_state_t state = open_connection(-1);
  if (!state) return 1;
  bool ok = opt.mode == MODE_DECLARE ? declare_queues(state)
            : opt.mode == MODE_DELETE ? delete_queues(state)
                                      : print_depths(state);
  if (ok) close_connection(state);
  return ok ? 0 : 1;
}

/* ---- the measured run ------------------------------------------------------------------------------------------- */

/* In the order of Mode. */
static const char *const mode_names[] = {"tx", "confirm", "flow", "rpc", "declare", "delete", "depth"};

static int compare_u32(const void *left, const void *right) {
  uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
  return (a > b) - (a < b);
}

/* Nearest rank: the smallest value with at least `share` of all values at or below it. */
static uint32_t percentile(const Latencies *sorted, double share) {
  if (sorted->count == 0) return 0;
  size_t rank = (size_t)ceil(share * (double)sorted->count);
  return sorted->values[rank > 0 ? rank - 1 : 0];
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void sleep_until(int64_t moment_us) {
  struct timespec t = {moment_us / 1000000, (moment_us % 1000000) * 1000};
  while (!atomic_load(&stopping)) {
    struct timespec slice = t;
    int64_t soon = now_us() + 50000; /* in slices: a failed client ends the run at once */
    if (soon < moment_us) slice = (struct timespec){soon / 1000000, (soon % 1000000) * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &slice, NULL);
    if (now_us() >= moment_us) return;
  }
}

static void print_result(Client *clients, int count, double generator_cpu) {
  Latencies all = {0};
  uint64_t commits = 0, messages = 0, sent = 0, settled = 0, acked = 0;
  for (int i = 0; i < count; i++) {
    commits += clients[i].commits;
    messages += clients[i].messages;
    sent += clients[i].sent;
    settled += clients[i].settled;
    acked += clients[i].acked;
    all.capacity += clients[i].latencies.count;
  }
  all.values = malloc((all.capacity + 1) * sizeof *all.values);
  for (int i = 0; i < count; i++) {
    Latencies *one = &clients[i].latencies;
    if (one->count) memcpy(all.values + all.count, one->values, one->count * sizeof *one->values);
    all.count += one->count;
  }
  qsort(all.values, all.count, sizeof *all.values, compare_u32);
  printf("{\"event\":\"result\",\"mode\":\"%s\",\"connections\":%d,\"messages_per_commit\":%d,\"size\":%d,"
         "\"queues\":%d,\"window\":%d,\"consume\":%s,",
         mode_names[opt.mode], opt.connections, opt.mode == MODE_TX ? opt.messages : 1, opt.size,
         opt.queues, opt.mode == MODE_CONFIRM || opt.mode == MODE_FLOW ? opt.window : 0, opt.consume ? "true" : "false");
  printf("\"seconds\":%.6f,\"commits\":%" PRIu64 ",\"messages\":%" PRIu64
         ",\"commits_per_s\":%.1f,\"messages_per_s\":%.1f,",
         opt.seconds, commits, messages, (double)commits / opt.seconds, (double)messages / opt.seconds);
  printf("\"p50_us\":%u,\"p95_us\":%u,\"p99_us\":%u,\"p999_us\":%u,\"max_us\":%u,", percentile(&all, 0.50),
         percentile(&all, 0.95), percentile(&all, 0.99), percentile(&all, 0.999), percentile(&all, 1.0));
  printf("\"generator_cpu_s\":%.3f,\"generator_cpu_us_per_message\":%.2f,", generator_cpu,
         messages ? generator_cpu * 1e6 / (double)messages : 0.0);
  printf("\"sent_total\":%" PRIu64 ",\"settled_total\":%" PRIu64 ",\"acked_total\":%" PRIu64 "}\n", sent, settled,
         acked);
  free(all.values);
}

static int run_load(void) {
  void *(*const runs[])(void *) = {run_tx, run_confirm, run_flow, run_rpc};
  int count = opt.mode == MODE_FLOW || opt.mode == MODE_RPC ? 2 * opt.connections : opt.connections;
  Client *clients = calloc(count, sizeof *clients);
  for (int i = 0; i < count; i++) {
    clients[i].number = i;
    if (!prepare(&clients[i])) return 1;
  }
  window_begin_us = now_us() + (int64_t)(opt.warmup * 1e6);
  window_end_us = window_begin_us + (int64_t)(opt.seconds * 1e6);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  for (int i = 0; i < count; i++) {
    int error = pthread_create(&clients[i].thread, &attributes, runs[opt.mode], &clients[i]);
    if (error) {
      fail(i, "cannot start a thread: %s", strerror(error));
      return 1;
    }
  }
  sleep_until(window_begin_us);
  double cpu_before = cpu_seconds();
  puts("{\"event\":\"measuring\"}");
  sleep_until(window_end_us);
  double cpu_after = cpu_seconds();
  puts("{\"event\":\"measured\"}");
  atomic_store(&stopping, true);
  for (int i = 0; i < count; i++) {
    if (i == opt.connections) atomic_store(&requests_over, true);
    pthread_join(clients[i].thread, NULL);
  }
  if (failed) return 1; /* the process ends here, so do its sockets */
  for (int i = 0; i < count; i++) close_connection(clients[i].state);
  print_result(clients, count, cpu_after - cpu_before);
  return 0;
}

/* ---- command line ----------------------------------------------------------------------------------------------- */

static const char usage_text[] =
    "usage: txgen --mode tx|confirm|flow|rpc|declare|delete|depth [options]\n"
    "  --host H --port P --user U --password P --vhost V   where (127.0.0.1 5672 guest guest /)\n"
    "  --prefix NAME --queues Q      durable queues NAME-0 .. NAME-(Q-1) (bench, 4)\n"
    "  --queue-type T                x-queue-type of --mode declare\n"
    "  --max-length N                x-max-length of --mode declare\n"
    "  --dead-letters NAME           declare, delete: a queue that gets what the others have no room for\n"
    "  --connections C --messages M  clients, messages a transaction (1, 1)\n"
    "  --size S                      body bytes (1024)\n"
    "  --window W                    publishes without confirm, per connection (1000)\n"
    "  --consume                     tx: also acknowledge up to M deliveries a transaction\n"
    "  --every-ms T                  tx: a connection begins a transaction every T ms (0: at once after the last)\n"
    "  --rate R                      flow: messages a second of all connections together (0: as fast as they can)\n"
    "  --seconds T --warmup T        measured time, time before it (5, 2)\n"
    "  --timeout T                   longest wait for any answer (30)\n";

__attribute__((noreturn)) static void usage(const char *problem, const char *value) {
  fprintf(stderr, "txgen: %s%s%s\n%s", problem, value ? ": " : "", value ? value : "", usage_text);
  exit(2);
}

static int whole(const char *name, const char *text, int low, int high) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || *end || end == text || value < low || value > high) usage(name, text);
  return (int)value;
}

static double seconds_of(const char *name, const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (*end || end == text || !(value >= 0 && value < 1e6)) usage(name, text);
  return value;
}

static Mode mode_named(const char *text) {
  for (Mode mode = MODE_TX; mode <= MODE_DEPTH; mode++)
    if (strcmp(text, mode_names[mode]) == 0) return mode;
  usage("--mode", text);
}

static void read_options(int argc, char **argv) {
  enum { O_MODE = 1, O_HOST, O_PORT, O_USER, O_PASSWORD, O_VHOST, O_PREFIX, O_QUEUES, O_TYPE, O_LENGTH, O_DEAD, O_CONNECTIONS, O_MESSAGES,
         O_SIZE, O_WINDOW, O_CONSUME, O_EVERY, O_RATE, O_SECONDS, O_WARMUP, O_TIMEOUT };
  static const struct option known[] = {
      {"mode", 1, 0, O_MODE}, {"host", 1, 0, O_HOST}, {"port", 1, 0, O_PORT}, {"user", 1, 0, O_USER},
      {"password", 1, 0, O_PASSWORD}, {"vhost", 1, 0, O_VHOST}, {"prefix", 1, 0, O_PREFIX}, {"queues", 1, 0, O_QUEUES},
      {"queue-type", 1, 0, O_TYPE}, {"max-length", 1, 0, O_LENGTH}, {"dead-letters", 1, 0, O_DEAD},
      {"connections", 1, 0, O_CONNECTIONS}, {"messages", 1, 0, O_MESSAGES},
      {"size", 1, 0, O_SIZE}, {"window", 1, 0, O_WINDOW}, {"consume", 0, 0, O_CONSUME}, {"every-ms", 1, 0, O_EVERY}, {"rate", 1, 0, O_RATE},
      {"seconds", 1, 0, O_SECONDS}, {"warmup", 1, 0, O_WARMUP}, {"timeout", 1, 0, O_TIMEOUT}, {0, 0, 0, 0}};
  bool mode_given = false;
  for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    switch (o) {
    case O_MODE: opt.mode = mode_named(optarg), mode_given = true; break;
    case O_HOST: opt.host = optarg; break;
    case O_PORT: opt.port = whole("--port", optarg, 1, 65535); break;
    case O_USER: opt.user = optarg; break;
    case O_PASSWORD: opt.password = optarg; break;
    case O_VHOST: opt.vhost = optarg; break;
    case O_PREFIX: opt.prefix = optarg; break;
    case O_QUEUES: opt.queues = whole("--queues", optarg, 1, QUEUES_MAX); break;
    case O_TYPE: opt.queue_type = optarg; break;
    case O_LENGTH: opt.max_length = whole("--max-length", optarg, 1, 1000000000); break;
    case O_DEAD: opt.dead_letters = optarg; break;
    case O_CONNECTIONS: opt.connections = whole("--connections", optarg, 1, 4096); break;
    case O_MESSAGES: opt.messages = whole("--messages", optarg, 1, 1000000); break;
    case O_SIZE: opt.size = whole("--size", optarg, 0, 1 << 27); break;
    case O_WINDOW: opt.window = whole("--window", optarg, 2, 1000000); break;
    case O_CONSUME: opt.consume = true; break;
    case O_EVERY: opt.every_ms = whole("--every-ms", optarg, 0, 60000); break;
    case O_RATE: opt.rate = whole("--rate", optarg, 0, 10000000); break;
    case O_SECONDS: opt.seconds = seconds_of("--seconds", optarg); break;
    case O_WARMUP: opt.warmup = seconds_of("--warmup", optarg); break;
    case O_TIMEOUT: opt.timeout = seconds_of("--timeout", optarg); break;
    default: usage("see above", NULL);
    }
  }
  if (optind < argc) usage("unexpected argument", argv[optind]);
  if (!mode_given) usage("--mode is needed", NULL);
  if (opt.mode == MODE_RPC && opt.queues <= opt.connections)
    usage("--mode rpc needs a queue for each requester, and one more for requests", NULL);
  if (opt.mode == MODE_FLOW && opt.size < 16) usage("--mode flow needs --size 16 or more", NULL);
  if (opt.seconds <= 0 || opt.timeout <= 0) usage("--seconds and --timeout must be above 0", NULL);
  for (int i = 0; i < opt.queues; i++) snprintf(queue_names[i], sizeof queue_names[i], "%.40s-%d", opt.prefix, i);
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0); /* the caller acts on each line as it comes */
  read_options(argc, argv);
  return opt.mode < MODE_DECLARE ? run_load() : run_queue_command();
}
