package micro

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// EchoVerb is the verb below `orbitkv bench` that runs ServeEcho.
const EchoVerb = "echo-server"

// exchangeHeader is {bytes that follow u32, bytes of the answer u32}.
const exchangeHeader = 8

// exchangeBytesMax bounds one direction of an exchange.
const exchangeBytesMax = 8 << 20

// ServeEcho answers every exchange on the Unix socket that it makes at path with as many bytes as it asks for, until ctx ends. It is the other end
// of the bare byte exchange that calls over the channel are measured beside, and it does nothing with the bytes.
func ServeEcho(ctx context.Context, path string) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go answerExchanges(conn)
	}
}

func answerExchanges(conn net.Conn) {
	buf := make([]byte, exchangeBytesMax)
	for {
		if _, err := io.ReadFull(conn, buf[:exchangeHeader]); err != nil {
			break
		}
		incoming, outgoing := binary.LittleEndian.Uint32(buf), binary.LittleEndian.Uint32(buf[4:])
		if max(incoming, outgoing) > exchangeBytesMax {
			break
		}
		if _, err := io.ReadFull(conn, buf[:incoming]); err != nil {
			break
		}
		if _, err := conn.Write(buf[:outgoing]); err != nil {
			break
		}
	}
	_ = conn.Close()
}

// exchange is one exchange over conn: what any protocol on this socket pays for its bytes.
func exchange(conn net.Conn, buf []byte, outgoing, incoming int) error {
	binary.LittleEndian.PutUint32(buf, uint32(outgoing))
	binary.LittleEndian.PutUint32(buf[4:], uint32(incoming))
	if _, err := conn.Write(buf[:exchangeHeader+outgoing]); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, buf[:incoming])
	return err
}

// withEcho runs use against an echo server in a process of its own.
func withEcho(program string, use func(socket string) error) error {
	dir, socket, err := socketFolder("echo.sock")
	if err != nil {
		return err
	}
	server, err := startChild(program, "bench", EchoVerb, socket)
	if err != nil {
		return errors.Join(fmt.Errorf("start the echo server: %w", err), os.RemoveAll(dir))
	}
	return errors.Join(use(socket), server.stop(), os.RemoveAll(dir))
}

// dialEcho waits until the server listens.
func dialEcho(ctx context.Context, socket string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			return conn, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the echo server does not answer: %w", err)
		}
	}
}
