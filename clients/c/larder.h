/* Larder's client for C: blocking calls to memcached, Larder and other servers that speak memcached's protocol.
 *
 * This file is generated from clients/c/src by `make larder.h`.
 *
 * Each call returns a status. Statuses from LARDER_STATUS_INVALID_ARGUMENT on are errors; larder_error_message() and
 * the functions after it describe the error, to the same thread until its next call.
 *
 * A client may be used by any number of threads; every other handle by one thread at a time. A handle is valid until it
 * is freed. Keys and values are bytes with a given length, and may contain zeros; texts end with a zero. Calls always
 * write through their output pointers: NULL if there is no handle to return. NULL arguments are errors unless stated
 * otherwise, and freeing NULL does nothing.
 */

#ifndef LARDER_H
#define LARDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The status of a call.
typedef enum {
  // The call succeeded.
  LARDER_STATUS_OK = 0,
  // The item does not exist.
  LARDER_STATUS_NOT_FOUND = 1,
  // The item was not stored, because the condition of the call does not hold.
  LARDER_STATUS_NOT_STORED = 2,
  // The item was not stored, because it was changed after its CAS was read.
  LARDER_STATUS_EXISTS = 3,
  // The value is not a number.
  LARDER_STATUS_NOT_A_NUMBER = 4,
  // An argument is NULL, is not UTF-8, or is an invalid address.
  LARDER_STATUS_INVALID_ARGUMENT = 16,
  // The key is invalid.
  LARDER_STATUS_KEY = 17,
  // The value is longer than any server accepts.
  LARDER_STATUS_VALUE_TOO_LONG = 18,
  // The server is unreachable.
  LARDER_STATUS_CONNECT = 19,
  // The server is unavailable after several failures; calls fail at once for a moment.
  LARDER_STATUS_UNAVAILABLE = 20,
  // All connections were in use until the deadline.
  LARDER_STATUS_POOL_TIMEOUT = 21,
  // The server did not reply by the deadline.
  LARDER_STATUS_TIMEOUT = 22,
  // The connection failed, or the server closed it.
  LARDER_STATUS_CONNECTION = 23,
  // The server's reply does not match the request.
  LARDER_STATUS_UNEXPECTED = 24,
  // The server refused the request. A retry cannot succeed.
  LARDER_STATUS_REFUSED = 25,
  // The server reported an error of its own.
  LARDER_STATUS_SERVER = 26,
  // The server refused the login.
  LARDER_STATUS_LOGIN = 27,
  // Another error of the client.
  LARDER_STATUS_OTHER = 28,
  // A bug in this library.
  LARDER_STATUS_PANIC = 29,
} larder_status;

// A client for any number of threads.
typedef struct larder_client larder_client;

// Options for opening a client.
typedef struct larder_options larder_options;

// A value with its flags and CAS.
typedef struct larder_value larder_value;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Creates options with default values. larder_options_free() frees them.
larder_options *larder_options_new(void);

// Frees options.
void larder_options_free(larder_options *options);

// Sets the time limit of a call in milliseconds, including the wait for a connection. [Default: 1000]
larder_status larder_options_timeout(larder_options *options,
                                     uint64_t millis);

// Sets the time limit for opening a connection in milliseconds, within the time limit of the call. [Default: 250]
larder_status larder_options_connect_timeout(larder_options *options,
                                             uint64_t millis);

// Gives each call a connection of a pool to itself. The pool has at most `max` connections per server; calls wait for
// a free one. [Default: calls share up to 4 connections per server]
larder_status larder_options_pool(larder_options *options,
                                  size_t max);

// Logs in on each connection with memcached's text protocol (its option -Y). Neither the user name nor the password
// may contain spaces. [Default: no login]
larder_status larder_options_login(larder_options *options,
                                   const char *user,
                                   const char *password);

// Opens a client for the server at an address: HOST, HOST:PORT, [V6]:PORT, or the path of a unix socket. Separate the
// addresses of several servers by commas; keys are distributed over them by rendezvous hashing, which depends only on
// the addresses. Options may be NULL, and may be freed after the call. Connections are opened on first use.
// larder_close() closes the client.
larder_status larder_open(const char *address,
                          const larder_options *options,
                          larder_client **client);

// Closes a client and its connections.
void larder_close(larder_client *client);

// Returns a description of the error of this thread's last call; empty if the call succeeded. Valid until the thread's
// next call.
const char *larder_error_message(void);

// Returns the server of the error of this thread's last call; NULL if there is none. Valid until the thread's next
// call.
const char *larder_error_server(void);

// Returns whether the change requested by this thread's last call may have happened despite its error. If false, it
// has not and will not.
bool larder_error_is_ambiguous(void);

// Reads the value of a key. larder_value_free() frees it.
larder_status larder_get(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         larder_value **value);

// Like larder_get(), and also reads the CAS of the value.
larder_status larder_gets(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          larder_value **value);

// Like larder_gets(), and sets the expiry of the item: in `ttl` seconds, or never with 0.
larder_status larder_gat(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         uint32_t ttl,
                         larder_value **value);

// Reads the values of `count` keys, with one batch of requests to each server. `values` has room for `count` values
// and receives them in the order of the keys, NULL for missing ones. larder_value_free() frees each value.
larder_status larder_get_many(const larder_client *client,
                              const char *const *keys,
                              const size_t *key_lens,
                              size_t count,
                              larder_value **values);

// Stores a value with flags, whether or not the item exists. It expires in `ttl` seconds, or never with 0.
larder_status larder_set(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags);

// Like larder_set(), but only if the item does not exist; otherwise LARDER_STATUS_NOT_STORED.
larder_status larder_add(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags);

// Like larder_set(), but only if the item exists; otherwise LARDER_STATUS_NOT_STORED.
larder_status larder_replace(const larder_client *client,
                             const char *key,
                             size_t key_len,
                             const void *value,
                             size_t value_len,
                             uint32_t ttl,
                             uint32_t flags);

// Like larder_set(), but only if the present item has this CAS; otherwise LARDER_STATUS_EXISTS or
// LARDER_STATUS_NOT_FOUND.
larder_status larder_cas(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags,
                         uint64_t cas);

// Appends bytes to a value; LARDER_STATUS_NOT_STORED if the item does not exist.
larder_status larder_append(const larder_client *client,
                            const char *key,
                            size_t key_len,
                            const void *more,
                            size_t more_len);

// Prepends bytes to a value; LARDER_STATUS_NOT_STORED if the item does not exist.
larder_status larder_prepend(const larder_client *client,
                             const char *key,
                             size_t key_len,
                             const void *more,
                             size_t more_len);

// Removes an item.
larder_status larder_delete(const larder_client *client, const char *key, size_t key_len);

// Sets the expiry of an item: in `ttl` seconds, or never with 0.
larder_status larder_touch(const larder_client *client,
                           const char *key,
                           size_t key_len,
                           uint32_t ttl);

// Adds to a number, modulo 2^64. Writes the new number to `number`, unless that is NULL.
larder_status larder_incr(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          uint64_t delta,
                          uint64_t *number);

// Subtracts from a number, but not below 0. Writes the new number to `number`, unless that is NULL.
larder_status larder_decr(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          uint64_t delta,
                          uint64_t *number);

// Removes all items from every server.
larder_status larder_flush(const larder_client *client);

// Returns the bytes of a value; NULL if the value is NULL. They are valid until the value is freed.
const void *larder_value_data(const larder_value *value);

// Returns the length of a value in bytes; 0 if it is NULL.
size_t larder_value_len(const larder_value *value);

// Returns the flags of a value; 0 if it is NULL.
uint32_t larder_value_flags(const larder_value *value);

// Returns the CAS of a value that larder_gets() or larder_gat() has read; otherwise 0.
uint64_t larder_value_cas(const larder_value *value);

// Frees a value.
void larder_value_free(larder_value *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LARDER_H */
