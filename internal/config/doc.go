// Package config owns the one table of configuration keys of the Cache Manager and of the engine adapters: flag, environment,
// connector key, default, unit and meaning.
//
// The command line, docs/reference/configuration.md and the adapters' table (python/src/orbitkv/_config.py) are made from it. Read turns
// what a user gave into a Config, with the flag before the environment before the default; every error names the key, the value
// and where it came from. The package is pure: it reads no file, and the environment only through a function that it is given.
package config

//go:generate go run ./gen
