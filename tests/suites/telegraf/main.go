// Runs Telegraf's inputs for memcached and Redis once: telegraf MEMCACHED-ADDRESS REDIS-ADDRESS
//
// Prints a line for each number: MEASUREMENT.FIELD NUMBER. Exits with 1 if an input reports an error. The agent itself
// has hundreds of dependencies, so the program contains only these two inputs.

package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/inputs/memcached"
	"github.com/influxdata/telegraf/plugins/inputs/redis"
)

// printer receives the fields of the inputs. Its methods other than those below panic, and no input calls them.
type printer struct {
	telegraf.Accumulator
	errors int
}

func (p *printer) AddFields(measurement string, fields map[string]interface{}, _ map[string]string, _ ...time.Time) {
	for name, value := range fields {
		switch value.(type) {
		case int64, uint64, float64:
			fmt.Printf("%s.%s %v\n", measurement, name, value)
		}
	}
}

func (p *printer) AddError(err error) {
	if err != nil {
		log.Print(err)
		p.errors++
	}
}

func main() {
	log.SetFlags(0)
	inputs := []telegraf.Input{
		&memcached.Memcached{Servers: os.Args[1:2]},
		&redis.Redis{Servers: []string{"tcp://" + os.Args[2]}},
	}
	received := &printer{}
	for _, input := range inputs {
		received.AddError(input.Gather(received))
	}
	if received.errors > 0 {
		os.Exit(1)
	}
}
