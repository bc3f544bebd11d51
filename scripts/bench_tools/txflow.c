/*
 * The loads of txgen that consume.
 *
 *   flow  C producers and as many consumers, a connection each: RabbitMQ slows a connection that publishes, and its
 *         acknowledgements with it.  A producer publishes with confirms (window W) to the queues in turn; a consumer
 *         acknowledges each delivery at once, one by one.  With --rate R all producers together publish R a second, each
 *         at even times; what is due is sent late rather than left out.  What counts is a delivery; its latency runs
 *         from the publish, with --rate from the time when the publish was due.
 *   rpc   C requesters and as many responders, a connection each.  The first Q - C queues take requests, the others
 *         replies, one for each requester.  A requester publishes a persistent request and waits for the reply; a
 *         responder publishes a persistent reply, then acknowledges the request.  What counts is a reply; its latency
 *         runs from the publish of the request.
 *
 * Checks: nothing is returned or refused, a reply answers the request that waits, no answer takes over --timeout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "txgen.h"

enum { PREFETCH = 200, LOOK_EVERY = 64, SLICE_US = 50000 };

typedef struct {
  uint64_t tag;
  amqp_basic_properties_t *properties;
  size_t size; /* of the body, which is in the buffer that was given */
} Delivery;

typedef enum { FRAME_FAILED = -1, FRAME_NONE, FRAME_CONFIRM, FRAME_DELIVERY } Got;

static bool read_frame(Client *client, const char *step, amqp_frame_t *frame) {
  struct timeval timeout = seconds_to_timeval(opt.timeout);
  int status = amqp_simple_wait_frame_noblock(client->state, frame, &timeout);
  if (status != AMQP_STATUS_TIMEOUT) return status_ok(client->number, step, status);
  fail(client->number, "%s: nothing within %.0f s", step, opt.timeout);
  return false;
}

/* Wait in the kernel, to the microsecond: the library's own wait counts in milliseconds.  False: nothing came. */
static bool await_data(Client *client, int64_t until_us) {
  if (amqp_frames_enqueued(client->state) || amqp_data_in_buffer(client->state)) return true;
  int64_t left_us = until_us - now_us();
  if (left_us < 0) left_us = 0;
  if (left_us > SLICE_US) left_us = SLICE_US; /* in slices: the end of the load is seen */
  struct timespec left = {left_us / 1000000, left_us % 1000000 * 1000};
  struct pollfd socket = {.fd = amqp_get_sockfd(client->state), .events = POLLIN};
  return ppoll(&socket, 1, &left, NULL) > 0;
}

static bool read_delivery(Client *client, amqp_basic_deliver_t *deliver, Delivery *delivery) {
  amqp_frame_t frame;
  delivery->tag = deliver->delivery_tag;
  delivery->size = 0;
  if (!read_frame(client, "header of a delivery", &frame)) return false;
  if (frame.frame_type != AMQP_FRAME_HEADER) {
    fail(client->number, "a frame of type %d stands in place of a delivery's header", frame.frame_type);
    return false;
  }
  uint64_t whole = frame.payload.properties.body_size;
  delivery->properties = frame.payload.properties.decoded;
  if (whole != (uint64_t)opt.size) {
    fail(client->number, "a delivery has %" PRIu64 " octets, not %d", whole, opt.size);
    return false;
  }
  while (delivery->size < whole) {
    if (!read_frame(client, "body of a delivery", &frame)) return false;
    if (frame.frame_type != AMQP_FRAME_BODY || delivery->size + frame.payload.body_fragment.len > whole) {
      fail(client->number, "a frame of type %d stands in place of a delivery's body", frame.frame_type);
      return false;
    }
    memcpy(client->received + delivery->size, frame.payload.body_fragment.bytes, frame.payload.body_fragment.len);
    delivery->size += frame.payload.body_fragment.len;
  }
  return true;
}

/* One confirm or delivery, if there is one by then. */
static Got read_one(Client *client, int64_t until_us, Delivery *delivery) {
  amqp_frame_t frame;
  if (!await_data(client, until_us)) return FRAME_NONE;
  if (!read_frame(client, "reading", &frame)) return FRAME_FAILED;
  if (frame.frame_type != AMQP_FRAME_METHOD) {
    fail(client->number, "unexpected frame of type %d", frame.frame_type);
    return FRAME_FAILED;
  }
  amqp_method_t method = frame.payload.method;
  if (method.id == AMQP_BASIC_DELIVER_METHOD)
    return read_delivery(client, method.decoded, delivery) ? FRAME_DELIVERY : FRAME_FAILED;
  if (method.id == AMQP_BASIC_ACK_METHOD) return take_ack(client, method.decoded, now_us()) ? FRAME_CONFIRM : FRAME_FAILED;
  char text[512];
  fail(client->number, "reading: %s", describe_method(method, text, sizeof text));
  return FRAME_FAILED;
}

static bool acknowledge(Client *client, const Delivery *delivery) {
  client->acked++;
  return status_ok(client->number, "basic.ack", amqp_basic_ack(client->state, CHANNEL, delivery->tag, 0));
}

static void count(Client *client, int64_t since_us) {
  int64_t now = now_us();
  if (now < window_begin_us || now >= window_end_us) return;
  client->messages++;
  remember(&client->latencies, now - since_us);
}

static bool consume(Client *client, const char *queue, int prefetch) {
  client->received = malloc((size_t)opt.size + 1);
  amqp_basic_qos(client->state, CHANNEL, 0, (uint16_t)prefetch, 0);
  if (!reply_ok(client->number, "basic.qos", amqp_get_rpc_reply(client->state))) return false;
  amqp_basic_consume(client->state, CHANNEL, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
  return reply_ok(client->number, "basic.consume", amqp_get_rpc_reply(client->state));
}

static bool publish(Client *client, amqp_bytes_t queue, amqp_basic_properties_t *properties, const char *body) {
  amqp_bytes_t bytes = {.len = (size_t)opt.size, .bytes = (void *)body};
  properties->_flags |= AMQP_BASIC_DELIVERY_MODE_FLAG;
  properties->delivery_mode = 2;
  client->sent++;
  return status_ok(client->number, "basic.publish",
                   amqp_basic_publish(client->state, CHANNEL, amqp_empty_bytes, queue, 0, 0, properties, bytes));
}

/* Producers of flow and requesters of rpc are the first clients; consumers and responders follow. */
static bool begins(const Client *client) { return client->number < opt.connections; }

/* ---- flow ------------------------------------------------------------------------------------------------------- */

bool prepare_flow(Client *client) {
  return begins(client) || consume(client, queue_names[client->number % opt.connections % opt.queues], PREFETCH);
}

/* The body says since when it is under way. */
static bool publish_since(Client *client, int64_t since_us) {
  uint64_t stamp[2] = {(uint64_t)since_us, (uint64_t)client->number << 40 | client->sent};
  memcpy(client->body, stamp, sizeof stamp);
  client->published_us[(client->sent + 1) % opt.window] = since_us;
  amqp_basic_properties_t properties = {._flags = 0};
  const char *queue = queue_names[(client->sent + client->number) % opt.queues];
  return publish(client, amqp_cstring_bytes(queue), &properties, client->body);
}

/* Take all confirms that have come, or wait for the first until then.  False: it failed. */
static bool take_confirms(Client *client, int64_t until_us, int64_t *heard_us) {
  Delivery none;
  Got got = read_one(client, until_us, &none);
  for (; got > FRAME_NONE; got = read_one(client, 0, &none)) *heard_us = now_us();
  amqp_maybe_release_buffers(client->state);
  if (got == FRAME_NONE && client->settled < client->sent && now_us() - *heard_us > (int64_t)(opt.timeout * 1e6)) {
    fail(client->number, "no confirm within %.0f s (%" PRIu64 " outstanding)", opt.timeout,
         client->sent - client->settled);
    return false;
  }
  return got != FRAME_FAILED;
}

static void *produce(Client *client) {
  double gap_us = opt.rate ? 1e6 * opt.connections / opt.rate : 0;
  double due_us = (double)now_us() + gap_us * client->number / opt.connections;
  int64_t heard_us = now_us();
  while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
    bool room = true, due = true;
    int sent = 0;
    for (; sent < LOOK_EVERY; sent++) {
      int64_t now = now_us();
      room = client->sent + 1 - client->lowest < (uint64_t)opt.window;
      due = !opt.rate || (int64_t)due_us <= now;
      if (!room || !due) break;
      if (!publish_since(client, opt.rate ? (int64_t)due_us : now)) return NULL;
      due_us += gap_us;
    }
    int64_t until_us = room && due ? 0 : room ? (int64_t)due_us : INT64_MAX;
    if (!take_confirms(client, until_us, &heard_us)) return NULL;
  }
  heard_us = now_us();
  while (client->settled < client->sent && !failed)
    if (!take_confirms(client, INT64_MAX, &heard_us)) break;
  return NULL;
}

void *run_flow(void *argument) {
  Client *client = argument;
  Delivery delivery;
  prctl(PR_SET_TIMERSLACK, 1UL);
  if (begins(client)) return produce(client);
  while (!failed && !atomic_load(&requests_over)) {
    Got got = read_one(client, INT64_MAX, &delivery);
    if (got == FRAME_FAILED) break;
    if (got == FRAME_DELIVERY) {
      int64_t since_us;
      memcpy(&since_us, client->received, sizeof since_us);
      count(client, since_us);
      if (!acknowledge(client, &delivery)) break;
    }
    amqp_maybe_release_buffers(client->state);
  }
  return NULL;
}

/* ---- rpc -------------------------------------------------------------------------------------------------------- */

static const char *reply_queue(const Client *client) {
  return queue_names[opt.queues - opt.connections + client->number];
}

static const char *request_queue(const Client *client) {
  return queue_names[client->number % opt.connections % (opt.queues - opt.connections)];
}

bool prepare_rpc(Client *client) {
  return begins(client) ? consume(client, reply_queue(client), 1) : consume(client, request_queue(client), 10);
}

static bool ask(Client *client, Delivery *reply) {
  char id[48];
  snprintf(id, sizeof id, "%d-%" PRIu64, client->number, client->sent);
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_REPLY_TO_FLAG | AMQP_BASIC_CORRELATION_ID_FLAG,
                                        .reply_to = amqp_cstring_bytes(reply_queue(client)),
                                        .correlation_id = amqp_cstring_bytes(id)};
  int64_t began = now_us(), until_us = began + (int64_t)(opt.timeout * 1e6);
  if (!publish(client, amqp_cstring_bytes(request_queue(client)), &properties, client->body)) return false;
  Got got = FRAME_NONE;
  while (got == FRAME_NONE && now_us() < until_us && !failed) got = read_one(client, until_us, reply);
  if (got != FRAME_DELIVERY) {
    if (got == FRAME_NONE) fail(client->number, "no reply within %.0f s", opt.timeout);
    return false;
  }
  amqp_bytes_t found = reply->properties->correlation_id;
  if (found.len != strlen(id) || memcmp(found.bytes, id, found.len) != 0) {
    fail(client->number, "a reply to %.*s in place of one to %s", (int)found.len, (char *)found.bytes, id);
    return false;
  }
  count(client, began);
  client->settled++;
  return acknowledge(client, reply);
}

static bool reply(Client *client, const Delivery *request) {
  amqp_basic_properties_t *asked = request->properties;
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_CORRELATION_ID_FLAG, .correlation_id = asked->correlation_id};
  if (!publish(client, asked->reply_to, &properties, client->received)) return false;
  client->settled++;
  return acknowledge(client, request);
}

void *run_rpc(void *argument) {
  Client *client = argument;
  Delivery delivery;
  prctl(PR_SET_TIMERSLACK, 1UL);
  if (begins(client)) {
    while (!atomic_load_explicit(&stopping, memory_order_relaxed) && ask(client, &delivery))
      amqp_maybe_release_buffers(client->state);
    return NULL;
  }
  while (!failed && !atomic_load(&requests_over)) {
    Got got = read_one(client, INT64_MAX, &delivery);
    if (got == FRAME_FAILED || (got == FRAME_DELIVERY && !reply(client, &delivery))) break;
    amqp_maybe_release_buffers(client->state);
  }
  return NULL;
}
