// Tests all calls with the server at the address argv[1]. With the arguments `logins ADDRESS`, tests the login instead.
// With `tls ADDRESS MUTUAL FOLDER`, tests TLS with two servers: the server at MUTUAL requires a client certificate.
// tests/check runs this program under valgrind.

#include <larder.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <unistd.h>

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, larder_error_message()); \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)
#define K(text) (text), strlen(text)

static int equals(const larder_value *value, const void *bytes, size_t len) {
  return larder_value_len(value) == len && memcmp(larder_value_data(value), bytes, len) == 0;
}

static int has(const larder_client *client, const char *key, const char *text) {
  larder_value *value;
  int is = larder_get(client, K(key), &value) == LARDER_STATUS_OK && equals(value, K(text));
  larder_value_free(value);
  return is;
}

static void stores(const larder_client *client) {
  CHECK(larder_flush(client) == LARDER_STATUS_OK);
  CHECK(larder_replace(client, K("key"), K("1"), 0, 0) == LARDER_STATUS_NOT_STORED);
  CHECK(larder_append(client, K("key"), K("1")) == LARDER_STATUS_NOT_STORED);
  CHECK(larder_prepend(client, K("key"), K("1")) == LARDER_STATUS_NOT_STORED);
  CHECK(larder_add(client, K("key"), K("1"), 60, 7) == LARDER_STATUS_OK);
  CHECK(larder_add(client, K("key"), K("2"), 60, 0) == LARDER_STATUS_NOT_STORED);
  CHECK(has(client, "key", "1"));
  CHECK(larder_replace(client, K("key"), K("b"), 0, 8) == LARDER_STATUS_OK);
  CHECK(larder_append(client, K("key"), K("c")) == LARDER_STATUS_OK);
  CHECK(larder_prepend(client, K("key"), K("a")) == LARDER_STATUS_OK);
  CHECK(has(client, "key", "abc"));
  CHECK(larder_set(client, K("key"), NULL, 0, 0, 0) == LARDER_STATUS_OK);
  CHECK(has(client, "key", ""));
  const char bytes[] = {'a', 0, '\r', '\n', (char)0xff};
  CHECK(larder_set(client, bytes, sizeof bytes, bytes, sizeof bytes, 0, 0xffffffff) == LARDER_STATUS_OK);
  larder_value *value;
  CHECK(larder_get(client, bytes, sizeof bytes, &value) == LARDER_STATUS_OK);
  CHECK(equals(value, bytes, sizeof bytes) && larder_value_flags(value) == 0xffffffff);
  CHECK(larder_value_cas(value) == 0);
  larder_value_free(value);
}

static void reads(const larder_client *client) {
  CHECK(larder_flush(client) == LARDER_STATUS_OK);
  larder_value *value;
  CHECK(larder_get(client, K("key"), &value) == LARDER_STATUS_NOT_FOUND && value == NULL);
  CHECK(larder_gets(client, K("key"), &value) == LARDER_STATUS_NOT_FOUND && value == NULL);
  CHECK(larder_gat(client, K("key"), 60, &value) == LARDER_STATUS_NOT_FOUND && value == NULL);
  CHECK(larder_touch(client, K("key"), 60) == LARDER_STATUS_NOT_FOUND);
  CHECK(larder_delete(client, K("key")) == LARDER_STATUS_NOT_FOUND);
  CHECK(larder_cas(client, K("key"), K("1"), 0, 0, 1) == LARDER_STATUS_NOT_FOUND);

  CHECK(larder_set(client, K("key"), K("1"), 60, 0) == LARDER_STATUS_OK);
  CHECK(larder_touch(client, K("key"), 60) == LARDER_STATUS_OK);
  CHECK(larder_gat(client, K("key"), 60, &value) == LARDER_STATUS_OK && equals(value, K("1")));
  larder_value_free(value);
  CHECK(larder_gets(client, K("key"), &value) == LARDER_STATUS_OK);
  uint64_t cas = larder_value_cas(value);
  larder_value_free(value);
  CHECK(larder_cas(client, K("key"), K("2"), 0, 3, cas + 1) == LARDER_STATUS_EXISTS);
  CHECK(larder_cas(client, K("key"), K("2"), 0, 3, cas) == LARDER_STATUS_OK);
  CHECK(larder_cas(client, K("key"), K("3"), 0, 0, cas) == LARDER_STATUS_EXISTS);

  const char *const keys[] = {"none", "key", "with blank", "key"};
  const size_t lens[] = {4, 3, 10, 3};
  CHECK(larder_set(client, K("with blank"), K("4"), 0, 0) == LARDER_STATUS_OK);
  larder_value *values[4];
  CHECK(larder_get_many(client, keys, lens, 4, values) == LARDER_STATUS_OK);
  CHECK(values[0] == NULL && equals(values[1], K("2")) && larder_value_flags(values[1]) == 3);
  CHECK(equals(values[2], K("4")) && equals(values[3], K("2")));
  for (int n = 0; n < 4; n++)
    larder_value_free(values[n]);
  CHECK(larder_get_many(client, NULL, NULL, 0, NULL) == LARDER_STATUS_OK);

  CHECK(larder_delete(client, K("key")) == LARDER_STATUS_OK);
  CHECK(!has(client, "key", "2"));
}

static void counts(const larder_client *client) {
  uint64_t number = 0;
  CHECK(larder_incr(client, K("none"), 1, &number) == LARDER_STATUS_NOT_FOUND);
  CHECK(larder_decr(client, K("none"), 1, NULL) == LARDER_STATUS_NOT_FOUND);
  CHECK(larder_set(client, K("n"), K("5"), 0, 0) == LARDER_STATUS_OK);
  CHECK(larder_incr(client, K("n"), 37, &number) == LARDER_STATUS_OK && number == 42);
  CHECK(larder_decr(client, K("n"), 2, NULL) == LARDER_STATUS_OK && has(client, "n", "40"));
  CHECK(larder_decr(client, K("n"), UINT64_MAX, &number) == LARDER_STATUS_OK && number == 0);
  CHECK(larder_set(client, K("word"), K("a"), 0, 0) == LARDER_STATUS_OK);
  CHECK(larder_incr(client, K("word"), 1, &number) == LARDER_STATUS_NOT_A_NUMBER);
}

static void arguments(const char *address, const larder_client *client) {
  larder_client *none;
  larder_value *value;
  CHECK(larder_open(NULL, NULL, &none) == LARDER_STATUS_INVALID_ARGUMENT && none == NULL);
  CHECK(larder_open("\xff", NULL, &none) == LARDER_STATUS_INVALID_ARGUMENT && none == NULL);
  CHECK(larder_open("cache:port", NULL, &none) == LARDER_STATUS_INVALID_ARGUMENT && none == NULL);
  CHECK(strstr(larder_error_message(), "cache:port"));
  CHECK(larder_open(address, NULL, NULL) == LARDER_STATUS_INVALID_ARGUMENT);
  CHECK(larder_get(NULL, K("key"), &value) == LARDER_STATUS_INVALID_ARGUMENT && value == NULL);
  CHECK(larder_get(client, NULL, 3, &value) == LARDER_STATUS_INVALID_ARGUMENT && value == NULL);
  CHECK(larder_get(client, K("key"), NULL) == LARDER_STATUS_INVALID_ARGUMENT);
  CHECK(larder_set(client, K("key"), NULL, 1, 0, 0) == LARDER_STATUS_INVALID_ARGUMENT);
  CHECK(larder_get_many(client, NULL, NULL, 1, &value) == LARDER_STATUS_INVALID_ARGUMENT && value == NULL);
  CHECK(larder_flush(NULL) == LARDER_STATUS_INVALID_ARGUMENT);
  CHECK(larder_options_pool(NULL, 1) == LARDER_STATUS_INVALID_ARGUMENT);
  CHECK(larder_get(client, "", 0, &value) == LARDER_STATUS_KEY);
  char key[251];
  memset(key, 'k', sizeof key);
  CHECK(larder_get(client, key, sizeof key, &value) == LARDER_STATUS_KEY);
  CHECK(larder_error_message()[0] && !larder_error_is_ambiguous());
  CHECK(larder_get(client, key, 250, &value) == LARDER_STATUS_NOT_FOUND);
  CHECK(!larder_error_message()[0] && larder_error_server() == NULL);
  CHECK(larder_value_data(NULL) == NULL && larder_value_len(NULL) == 0);
  CHECK(larder_value_flags(NULL) == 0 && larder_value_cas(NULL) == 0);
  larder_value_free(NULL);
  larder_options_free(NULL);
  larder_close(NULL);
}

// Tests calls to a server that accepts connections and never replies, and to an unreachable server.
static void faults(void) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  CHECK(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 8) == 0);
  CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
  char address[32];
  snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(at.sin_port));

  larder_options *options = larder_options_new();
  CHECK(larder_options_timeout(options, 100) == LARDER_STATUS_OK);
  CHECK(larder_options_connect_timeout(options, 100) == LARDER_STATUS_OK);
  CHECK(larder_options_pool(options, 1) == LARDER_STATUS_OK);
  larder_client *client;
  CHECK(larder_open(address, options, &client) == LARDER_STATUS_OK);
  larder_options_free(options);
  larder_value *value;
  CHECK(larder_get(client, K("key"), &value) == LARDER_STATUS_TIMEOUT);
  CHECK(!larder_error_is_ambiguous() && strcmp(larder_error_server(), address) == 0);
  CHECK(larder_set(client, K("key"), K("1"), 0, 0) == LARDER_STATUS_TIMEOUT);
  CHECK(larder_error_is_ambiguous() && strstr(larder_error_message(), "deadline"));
  close(listener);
  CHECK(larder_set(client, K("key"), K("1"), 0, 0) == LARDER_STATUS_CONNECT);
  CHECK(!larder_error_is_ambiguous());
  larder_close(client);
}

// Tests keys of an unreachable server, which is the first of two.
static void failover(const char *address) {
  char addresses[200];
  CHECK(snprintf(addresses, sizeof addresses, "127.0.0.1:1,%s", address) < (int)sizeof addresses);
  CHECK(larder_options_failover(NULL, true) == LARDER_STATUS_INVALID_ARGUMENT);
  for (int enabled = 0; enabled < 2; enabled++) {
    larder_options *options = larder_options_new();
    larder_options_timeout(options, 60000);
    larder_options_connect_timeout(options, 60000);
    CHECK(larder_options_failover(options, enabled) == LARDER_STATUS_OK);
    larder_client *client;
    CHECK(larder_open(addresses, options, &client) == LARDER_STATUS_OK);
    larder_options_free(options);
    int failed = 0;
    for (int n = 0; n < 40; n++) {
      char key[16];
      int len = snprintf(key, sizeof key, "failover%d", n);
      larder_status status = larder_set(client, key, len, K("1"), 0, 0);
      bool is_refused = status == LARDER_STATUS_CONNECT || status == LARDER_STATUS_UNAVAILABLE;
      CHECK(status == LARDER_STATUS_OK || is_refused);
      failed += is_refused;
      larder_value *value;
      CHECK(larder_get(client, key, len, &value) == LARDER_STATUS_OK || is_refused);
      larder_value_free(value);
    }
    CHECK(enabled ? failed == 0 : failed > 0 && failed < 40);
    larder_close(client);
  }
}

static const larder_client *shared;

static void *thread(void *name) {
  for (int round = 0; round < 50; round++) {
    char key[32], text[64];
    snprintf(key, sizeof key, "thread%" PRIdPTR "-%d", (intptr_t)name, round % 5);
    snprintf(text, sizeof text, "%s in round %d", key, round);
    CHECK(larder_set(shared, K(key), K(text), 0, 0) == LARDER_STATUS_OK);
    CHECK(has(shared, key, text));
  }
  return NULL;
}

static void threads(const larder_client *client) {
  pthread_t threads[8];
  shared = client;
  for (intptr_t n = 0; n < 8; n++)
    CHECK(pthread_create(&threads[n], NULL, thread, (void *)n) == 0);
  for (int n = 0; n < 8; n++)
    CHECK(pthread_join(threads[n], NULL) == 0);
}

// The server accepts the user "ann" with the password "secret".
static void logins(const char *address) {
  larder_value *value;
  const char *const passwords[] = {"secret", "wrong"};
  const larder_status statuses[] = {LARDER_STATUS_NOT_FOUND, LARDER_STATUS_LOGIN};
  for (int n = 0; n < 2; n++) {
    larder_options *options = larder_options_new();
    larder_options_timeout(options, 60000);
    larder_options_connect_timeout(options, 60000);
    CHECK(larder_options_login(options, "ann", NULL) == LARDER_STATUS_INVALID_ARGUMENT);
    CHECK(larder_options_login(options, "ann", passwords[n]) == LARDER_STATUS_OK);
    larder_client *client;
    CHECK(larder_open(address, options, &client) == LARDER_STATUS_OK);
    larder_options_free(options);
    CHECK(larder_get(client, K("key"), &value) == statuses[n]);
    larder_close(client);
  }
}

// The names of PEM files in `folder`, and a server name. NULL stands for no file or name.
typedef struct {
  const char *ca, *cert, *key, *name;
} tls_settings;

static const char *folder;

static larder_status set_tls(larder_options *options, tls_settings tls) {
  const char *names[3] = {tls.ca, tls.cert, tls.key};
  char paths[3][4096];
  for (int n = 0; n < 3; n++) {
    if (names[n])
      snprintf(paths[n], sizeof paths[n], "%s/%s", folder, names[n]);
    names[n] = names[n] ? paths[n] : NULL;
  }
  return larder_options_tls(options, names[0], names[1], names[2], tls.name);
}

// Opens a client. Without settings, its connections are not encrypted.
static larder_client *open_client(const char *address, const tls_settings *tls) {
  larder_options *options = larder_options_new();
  larder_options_timeout(options, 60000);
  larder_options_connect_timeout(options, 60000);
  if (tls)
    CHECK(set_tls(options, *tls) == LARDER_STATUS_OK);
  larder_client *client;
  CHECK(larder_open(address, options, &client) == LARDER_STATUS_OK);
  larder_options_free(options);
  return client;
}

// Checks that a lookup fails. Returns whether the error contains `text`.
static int fails(const char *address, const tls_settings *tls, const char *text, larder_status status) {
  larder_client *client = open_client(address, tls);
  larder_value *value;
  larder_status got = larder_get(client, K("key"), &value);
  CHECK(got >= LARDER_STATUS_INVALID_ARGUMENT);
  int is = got == status && strstr(larder_error_message(), text) != NULL;
  larder_close(client);
  return is;
}

static void refused_files(void) {
  larder_options *options = larder_options_new();
  const struct {
    tls_settings tls;
    const char *text;
  } cases[] = {
      {{.ca = "none.pem"}, "none.pem: No such file"},
      {{.ca = "empty.pem"}, "empty.pem: no certificate"},
      {{.ca = "ca.key"}, "ca.key: no certificate"},
      {{.cert = "client.pem"}, "client.pem: no private key"},
      {{.cert = "client.pem", .key = "server.key"}, "server.key: "},
      {{.key = "client.key"}, "needs a cert_file"},
      {{.name = "no name"}, "not a valid certificate name"},
      {{.name = "\xff"}, "not UTF-8"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    CHECK(set_tls(options, cases[n].tls) == LARDER_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(larder_error_message(), cases[n].text));
  }
  CHECK(larder_options_tls(NULL, NULL, NULL, NULL, NULL) == LARDER_STATUS_INVALID_ARGUMENT);
  larder_options_free(options);
}

static void encrypted(const char *address, const char *mutual) {
  refused_files();
  const tls_settings trusting = {.ca = "ca.pem"}, named = {.ca = "ca.pem", .name = "cache.test"};
  const tls_settings known = {.ca = "ca.pem", .cert = "client.pem", .key = "client.key"};
  const tls_settings both = {.ca = "ca.pem", .cert = "both.pem"};
  const struct {
    const char *address;
    const tls_settings *tls;
  } accepted[] = {{address, &trusting}, {address, &named}, {address, &known}, {mutual, &known}, {mutual, &both}};
  char *value = malloc(300000);
  memset(value, 'v', 300000);
  for (size_t n = 0; n < sizeof accepted / sizeof accepted[0]; n++) {
    larder_client *client = open_client(accepted[n].address, accepted[n].tls);
    larder_value *found;
    CHECK(larder_set(client, K("key"), value, 300000, 0, 0) == LARDER_STATUS_OK);
    CHECK(larder_get(client, K("key"), &found) == LARDER_STATUS_OK && equals(found, value, 300000));
    larder_value_free(found);
    larder_close(client);
  }
  free(value);

  const char *untrusted = "the server's certificate is not signed by a trusted CA";
  const tls_settings other = {.ca = "other.pem"}, wrong = {.ca = "ca.pem", .name = "other.test"}, of_system = {0};
  CHECK(fails(address, &other, untrusted, LARDER_STATUS_CONNECT));
  CHECK(fails(address, &of_system, untrusted, LARDER_STATUS_CONNECT));
  CHECK(fails(address, &wrong, "not for other.test", LARDER_STATUS_CONNECT));
  // A server refuses a client after the handshake, and the client can lose the reason when the server closes the
  // connection.
  int has_reason = 0;
  for (int n = 0; n < 500 && !has_reason; n++)
    has_reason = fails(mutual, &trusting, "CertificateRequired", LARDER_STATUS_CONNECTION);
  CHECK(has_reason);
  // memcached closes the connection without a reply, unlike larderd.
  if (strstr(getenv("SERVER"), "larderd")) {
    has_reason = 0;
    for (int n = 0; n < 500 && !has_reason; n++)
      has_reason = fails(address, NULL, "requires TLS", LARDER_STATUS_UNEXPECTED);
    CHECK(has_reason);
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2 || argc == 3 || argc == 5);
  if (argc == 5) {
    folder = argv[4];
    encrypted(argv[2], argv[3]);
    return 0;
  }
  if (argc == 3) {
    logins(argv[2]);
    return 0;
  }
  // The time limits are long, because valgrind slows the program down.
  larder_options *options = larder_options_new();
  larder_options_timeout(options, 60000);
  larder_options_connect_timeout(options, 60000);
  larder_options_pool(options, 4);
  larder_client *client;
  CHECK(larder_open(argv[1], options, &client) == LARDER_STATUS_OK);
  larder_options_free(options);
  stores(client);
  reads(client);
  counts(client);
  threads(client);
  arguments(argv[1], client);
  larder_close(client);
  faults();
  failover(argv[1]);
  return 0;
}
