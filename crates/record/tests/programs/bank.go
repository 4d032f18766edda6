// Tellers post to the accounts of a bank: `bank shared|own SECONDS`. Prints the number of postings.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	end := time.Now().Add(time.Duration(seconds * 1e9))
	var shared sync.Mutex
	var tellers sync.WaitGroup
	var posted [6]int
	for own := range posted {
		lock := &shared
		if os.Args[1] != "shared" {
			lock = new(sync.Mutex)
		}
		tellers.Add(1)
		go func() {
			defer tellers.Done()
			for time.Now().Before(end) {
				lock.Lock()
				posted[own]++
				time.Sleep(2 * time.Millisecond)
				lock.Unlock()
			}
		}()
	}
	tellers.Wait()
	sum := 0
	for _, n := range posted {
		sum += n
	}
	fmt.Println(sum)
}
