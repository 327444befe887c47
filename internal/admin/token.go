package admin

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sizes of a token, in bytes of text.
const (
	tokenBytesMin = 16
	tokenBytesMax = 4096
)

// Token is the secret of the verbs that change state, and the file that holds it.
type Token struct {
	Path   string
	secret string
	made   os.FileInfo // of the file that was made here; nil when the user brought one
}

// OpenToken reads the file of a token that the user brought, or makes one. A file that exists where one is to be made is left over from a
// Manager that was killed and is replaced; the caller owns the socket beside it, so no other Manager uses it.
func OpenToken(path string, named bool) (*Token, error) {
	if named {
		secret, err := ReadToken(path)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return &Token{Path: path, secret: secret}, err
		}
	} else if err := removeLeftover(path); err != nil {
		return nil, err
	}
	var raw [32]byte
	rand.Read(raw[:])
	t := &Token{Path: path, secret: hex.EncodeToString(raw[:])}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("token file: %w: name another one with --admin-token-file", err)
	}
	_, err = file.WriteString(t.secret + "\n")
	if err == nil {
		t.made, err = file.Stat()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		// Left half written it would be taken for one that the user brought.
		return nil, errors.Join(fmt.Errorf("token file %s: %w", path, err), os.Remove(path))
	}
	return t, nil
}

func removeLeftover(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("token file %s is in the way and no regular file: move it, or name another one with --admin-token-file", path)
	}
	return os.Remove(path)
}

// ReadToken takes a token only from a file that nobody else can read.
func ReadToken(path string) (secret string, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("token file %s has mode %v: it must be a regular file that only its owner can read (chmod 600)", path, info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(file, tokenBytesMax+1))
	if err != nil {
		return "", fmt.Errorf("token file %s: %w", path, err)
	}
	secret = strings.TrimSpace(string(text))
	if len(secret) < tokenBytesMin || len(secret) > tokenBytesMax {
		return "", fmt.Errorf("token file %s holds %d characters: a token has %d to %d", path, len(secret), tokenBytesMin, tokenBytesMax)
	}
	return secret, nil
}

// Close removes the file if it was made here and is still the same.
func (t *Token) Close() error {
	if t.made == nil {
		return nil
	}
	if info, err := os.Lstat(t.Path); err != nil || !os.SameFile(info, t.made) {
		return nil
	}
	return os.Remove(t.Path)
}
