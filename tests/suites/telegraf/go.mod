module github.com/larder-cache/larder/tests/suites/telegraf

go 1.18

require github.com/influxdata/telegraf v1.25.3

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/go-redis/redis/v8 v8.11.5 // indirect
	golang.org/x/net v0.7.0 // indirect
)
