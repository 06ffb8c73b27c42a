// Measures a Go client of memcached: driver --server HOST:PORT --mode pool ...
//
// docs/client-benchmarks.md defines the arguments and the output lines of all drivers. To add a client, add an
// entry to clients.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	pool        = 64
	timeout     = time.Second
	recoveryMax = time.Minute
	// An operation that takes at least this long is part of the outage. Some clients wait for the server instead of
	// failing.
	outageMin = 250 * time.Millisecond
)

var many = []int{6, 100}

// A client is a library. make returns an instance that opens at most the given number of
// connections. gomemcache can exceed the limit.
type client struct {
	module string
	make   func(server string, connections int) connections
}

type connections interface {
	set(key string, value []byte) error
	get(key string) ([]byte, error)
	getMany(keys []string, visit func(place int, value []byte) error) error
	close()
}

var clients = map[string]client{
	"gomemcache": {"github.com/bradfitz/gomemcache", newGomemcache},
}

// gomemcache limits the number of idle connections, but not the number of open connections.
type gomemcache struct{ *memcache.Client }

func newGomemcache(server string, connections int) connections {
	made := memcache.New(server)
	made.MaxIdleConns = connections
	made.Timeout = timeout
	return gomemcache{made}
}

func (c gomemcache) set(key string, value []byte) error {
	return c.Set(&memcache.Item{Key: key, Value: value})
}

func (c gomemcache) get(key string) ([]byte, error) {
	item, err := c.Get(key)
	if err == memcache.ErrCacheMiss {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return item.Value, nil
}

func (c gomemcache) getMany(keys []string, visit func(int, []byte) error) error {
	items, err := c.GetMulti(keys)
	if err != nil {
		return err
	}
	for place, key := range keys {
		item := items[key]
		if item == nil {
			item = &memcache.Item{}
		}
		if err := visit(place, item.Value); err != nil {
			return err
		}
	}
	return nil
}

func (c gomemcache) close() { c.Close() }

// A caller is the key, the values and the client of a goroutine.
type caller struct {
	driver *driver
	client connections // nil if each operation has a connection of its own
	key    string
	// Sets alternate between these values, so judge detects a get that returns the previous value.
	values [2][]byte
	errors int
	first  error
}

func (c *caller) with(call func(connections) error) error {
	if c.client != nil {
		return call(c.client)
	}
	client := c.driver.connect(1)
	defer client.close()
	return call(client)
}

func (c *caller) set(number int) error {
	return c.with(func(client connections) error { return client.set(c.key, c.values[number%2]) })
}

func (c *caller) get(number int) error {
	var found []byte
	err := c.with(func(client connections) (err error) {
		found, err = client.get(c.key)
		return err
	})
	if err == nil {
		c.judge(number, found)
	}
	return err
}

// judge terminates the process if the value is wrong.
func (c *caller) judge(number int, found []byte) {
	if expected := c.values[number%2]; string(found) != string(expected) {
		fail(fmt.Errorf("the value of %s is %.40q, but %.40q was stored there last", c.key, found, expected))
	}
}

// attempt reports whether the operation succeeded. It counts an error if the operation failed.
func (c *caller) attempt(operation func(int) error, number int) bool {
	err := operation(number)
	if err != nil {
		c.errors++
		if c.first == nil {
			c.first = err
		}
	}
	return err == nil
}

type driver struct {
	name, server, mode string
	valueBytes, rounds int
	seed, calls        int
	length             time.Duration
}

func (d *driver) connect(count int) connections { return clients[d.name].make(d.server, count) }

func (d *driver) callers(threads int) []*caller {
	var shared connections
	if d.mode == "pool" {
		shared = d.connect(pool)
	}
	made := make([]*caller, threads)
	for thread := range made {
		client := shared
		if d.mode == "thread" {
			client = d.connect(1)
		}
		made[thread] = d.caller(client, thread)
	}
	return made
}

func (d *driver) caller(client connections, thread int) *caller {
	key := fmt.Sprintf("bench-%d-%d", d.seed, thread)
	made := &caller{driver: d, client: client, key: key}
	for place, letter := range []string{"a", "b"} {
		value := []byte(key + "-" + letter)
		made.values[place] = append(value, strings.Repeat(".", d.valueBytes-len(value))...)
	}
	return made
}

func (d *driver) line(threads int, name string, value float64) {
	fmt.Printf("%s,%s,%d,%s,%.3f\n", d.name, d.mode, threads, name, value)
}

// finish closes connections and prints the number of errors.
func (d *driver) finish(callers []*caller, name string) {
	errors := 0
	var first error
	for _, c := range callers {
		errors += c.errors
		if first == nil {
			first = c.first
		}
		if c.client != nil {
			c.client.close()
		}
	}
	if errors > 0 {
		fmt.Fprintf(os.Stderr, "%s: %d operations failed, first: %v\n", d.name, errors, first)
	}
	d.line(len(callers), name, float64(errors))
}

func (d *driver) times(threads int) {
	callers := d.callers(threads)
	for round := 0; round <= d.rounds; round++ {
		times := make([]time.Duration, threads)
		begin := make(chan struct{})
		var ready, done sync.WaitGroup
		ready.Add(threads)
		for thread, c := range callers {
			done.Go(func() {
				ready.Done()
				<-begin
				begun := time.Now()
				for number := range 2 {
					// After a failed set, the stored value is unknown.
					if !c.attempt(c.set, number) || !c.attempt(c.get, number) {
						return
					}
				}
				times[thread] = time.Since(begun)
			})
		}
		ready.Wait()
		close(begin)
		done.Wait()
		for thread, time := range times {
			if round > 0 && time > 0 {
				fmt.Printf("%s,%s,%d,%d,%d,%.1f\n", d.name, d.mode, threads, round, thread, micros(time))
			}
		}
	}
	d.finish(callers, "times_errors")
}

func (d *driver) load(threads int) {
	callers := d.callers(threads)
	latencies := make([][]time.Duration, threads)
	begin := make(chan struct{})
	var ready, done sync.WaitGroup
	ready.Add(threads)
	for thread, c := range callers {
		done.Go(func() {
			var mine []time.Duration
			operations := []func(int) error{c.set, c.get}
			c.attempt(c.set, 0)
			ready.Done()
			<-begin
			before := time.Now()
			end := before.Add(d.length)
			for number := 0; before.Before(end); number++ {
				for _, operation := range operations {
					succeeded := c.attempt(operation, number)
					now := time.Now()
					if succeeded {
						mine = append(mine, now.Sub(before))
					}
					before = now
					if !succeeded {
						break
					}
				}
			}
			latencies[thread] = mine
		})
	}
	ready.Wait()
	begun, cpuBefore := time.Now(), cpuMicros()
	close(begin)
	done.Wait()
	took, cpu := time.Since(begun), cpuMicros()-cpuBefore
	all := slices.Concat(latencies...)
	slices.Sort(all)
	var sum time.Duration
	for _, latency := range all {
		sum += latency
	}
	count := max(len(all), 1)
	d.line(threads, "operations_per_s", float64(len(all))/took.Seconds())
	d.line(threads, "cpu_us", cpu/float64(count))
	d.line(threads, "mean_us", micros(sum)/float64(count))
	for _, percent := range []int{50, 99} {
		var latency time.Duration
		if len(all) > 0 {
			latency = all[(count*percent+99)/100-1]
		}
		d.line(threads, fmt.Sprintf("p%d_us", percent), micros(latency))
	}
	d.finish(callers, "errors")
}

func (d *driver) many() {
	connections := 1
	if d.mode == "pool" {
		connections = pool
	}
	client := d.connect(connections)
	defer client.close()
	for _, keys := range many {
		callers, names := make([]*caller, keys), make([]string, keys)
		for thread := range callers {
			callers[thread] = d.caller(client, thread)
			names[thread] = callers[thread].key
			check(d, callers[thread].set(0))
		}
		cpuBefore := cpuMicros()
		for range d.calls {
			check(d, client.getMany(names, func(place int, value []byte) error {
				callers[place].judge(0, value)
				return nil
			}))
		}
		d.line(1, fmt.Sprintf("get_many_%d_cpu_us", keys), (cpuMicros()-cpuBefore)/float64(d.calls))
	}
}

func (d *driver) recovery() {
	c := d.callers(1)[0]
	d.line(1, "ready", 1)
	begun := time.Now()
	var failing time.Time
	for time.Since(begun) < recoveryMax {
		before := time.Now()
		succeeded := c.attempt(c.set, 0)
		if failing.IsZero() && (!succeeded || time.Since(before) >= outageMin) {
			failing = before
		}
		if succeeded && !failing.IsZero() {
			d.line(1, "outage_us", micros(time.Since(failing)))
			return
		}
		time.Sleep(time.Millisecond)
	}
	fail(fmt.Errorf("within %v, no operation succeeded after one that had failed", recoveryMax))
}

func (d *driver) measure(names []string, threads []int) {
	client := d.connect(1)
	check(d, client.set("bench", []byte("1")))
	client.close()
	for _, name := range names {
		switch name {
		case "times":
			for _, count := range threads {
				d.times(count)
			}
		case "load":
			for _, count := range threads {
				d.load(count)
			}
		case "many":
			d.many()
		case "recovery":
			d.recovery()
		default:
			fail(fmt.Errorf("--measure: unknown measurement %q", name))
		}
	}
}

func micros(time time.Duration) float64 { return float64(time.Nanoseconds()) / 1e3 }

func cpuMicros() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	nanos := usage.Utime.Nano() + usage.Stime.Nano()
	return float64(nanos) / 1e3
}

func check(d *driver, err error) {
	if err != nil {
		fail(fmt.Errorf("%s: %s: %w", d.name, d.server, err))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func version(module string) string {
	build, _ := debug.ReadBuildInfo()
	for _, dependency := range build.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return "unknown"
}

func main() {
	d := &driver{}
	if len(os.Args) > 1 {
		d.name = os.Args[1]
	}
	if _, known := clients[d.name]; !known {
		fail(fmt.Errorf("usage: driver gomemcache --server HOST:PORT ..."))
	}
	line := flag.NewFlagSet(d.name, flag.ExitOnError)
	line.StringVar(&d.server, "server", "127.0.0.1:11211", "HOST:PORT")
	line.StringVar(&d.mode, "mode", "pool", "pool, none or thread")
	threads := line.String("threads", "1", "numbers of goroutines")
	line.IntVar(&d.valueBytes, "value-bytes", 19, "size of a value")
	names := line.String("measure", "times", "times, load, many, recovery")
	line.IntVar(&d.rounds, "rounds", 5, "rounds of times")
	line.IntVar(&d.seed, "seed", 1, "part of all keys")
	secs := line.Float64("secs", 1, "duration of load")
	line.IntVar(&d.calls, "calls", 1000, "calls of many")
	asked := line.Bool("version", false, "print the version of the client")
	_ = line.Parse(os.Args[2:])
	d.length = time.Duration(*secs * float64(time.Second))
	if *asked {
		fmt.Println(version(clients[d.name].module))
		return
	}
	var counts []int
	for text := range strings.SplitSeq(*threads, ",") {
		count, err := strconv.Atoi(text)
		if err != nil || count < 1 {
			fail(fmt.Errorf("--threads: %q is not a number of goroutines", text))
		}
		counts = append(counts, count)
	}
	d.measure(strings.Split(*names, ","), counts)
}
