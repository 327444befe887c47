package launch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
)

// Where ports are looked for: above those of well-known services, and outside of the range that the kernel draws from for connections,
// which would take a free port between the look and the bind.
const (
	lowestPort   = 10240
	highestPort  = 65535
	portAttempts = 1000
)

// ephemeralRange reads the kernel's range of ports for connections. Where it is unreadable, the range is the kernel's own default.
func ephemeralRange() (low, high int) {
	low, high = 32768, 60999
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return low, high
	}
	fields := strings.Fields(string(text))
	if len(fields) != 2 {
		return low, high
	}
	first, err1 := strconv.Atoi(fields[0])
	last, err2 := strconv.Atoi(fields[1])
	if err1 != nil || err2 != nil {
		return low, high
	}
	return first, last
}

// freePorts returns distinct loopback ports that nobody listens on.
func freePorts(n int) (ports []int, err error) {
	low, high := ephemeralRange()
	var held []net.Listener
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for range portAttempts {
		if len(ports) == n {
			return ports, nil
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if port >= low && port <= high && !everything(low, high) {
			continue
		}
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // somebody listens there
		}
		held = append(held, l)
		ports = append(ports, port)
	}
	if len(ports) == n {
		return ports, nil
	}
	return nil, fmt.Errorf("launch: no %d free loopback ports outside of %d to %d after %d tries: end what listens there, or narrow net.ipv4.ip_local_port_range", n, low, high, portAttempts)
}

// everything says whether the kernel's range leaves too little beside it, so that ports must come from inside.
func everything(low, high int) bool {
	return max(low-lowestPort, 0)+max(highestPort-high, 0) < 100
}
