package resp

import (
	"context"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

// The locks of redsync and the limits of redis_rate use scripts that larderd implements.

func TestRedsync(t *testing.T) {
	client := connectRedis(t, 2)
	client.FlushAll(context.Background())
	locks := redsync.New(goredis.NewPool(client))
	first := locks.NewMutex("lock", redsync.WithExpiry(50*time.Second), redsync.WithTries(1))
	second := locks.NewMutex("lock", redsync.WithExpiry(50*time.Second), redsync.WithTries(1))
	must(t, first.Lock())
	if second.Lock() == nil {
		t.Fatal("two owners hold one lock")
	}
	if extended, err := first.Extend(); !extended || err != nil {
		t.Fatal("not extended", err)
	}
	if released, err := first.Unlock(); !released || err != nil {
		t.Fatal("not released", err)
	}
	if released, _ := first.Unlock(); released {
		t.Fatal("released twice")
	}
	must(t, second.Lock())
	if released, _ := first.Unlock(); released {
		t.Fatal("an earlier owner released the lock")
	}
	if extended, _ := first.Extend(); extended {
		t.Fatal("an earlier owner extended the lock")
	}
}

func TestRedisRate(t *testing.T) {
	context := context.Background()
	client := connectRedis(t, 3)
	client.FlushAll(context)
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.PerHour(10)
	for left := 9; left >= 0; left-- {
		result, err := limiter.Allow(context, "user", limit)
		must(t, err)
		if result.Allowed != 1 || result.Remaining != left || result.RetryAfter != -1 {
			t.Fatalf("%d left: %+v", left, result)
		}
	}
	result, err := limiter.Allow(context, "user", limit)
	must(t, err)
	if result.Allowed != 0 || result.RetryAfter <= 5*time.Minute || result.RetryAfter > 6*time.Minute {
		t.Fatalf("%+v", result)
	}
	result, err = limiter.AllowAtMost(context, "other", limit, 15)
	must(t, err)
	if result.Allowed != 10 || result.Remaining != 0 || result.ResetAfter <= 59*time.Minute {
		t.Fatalf("%+v", result)
	}
	result, err = limiter.AllowAtMost(context, "other", limit, 2)
	must(t, err)
	if result.Allowed != 0 {
		t.Fatalf("%+v", result)
	}
	must(t, limiter.Reset(context, "user"))
	result, err = limiter.Allow(context, "user", limit)
	must(t, err)
	if result.Allowed != 1 {
		t.Fatalf("%+v", result)
	}
}
