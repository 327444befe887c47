package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"orbitkv/bench/record"
)

// configBytesMax bounds a config.json.
const configBytesMax = 4 << 20

// valueBytes is the size of a value of KV: every engine is started with 16-bit floats.
const valueBytes = 2

// modelConfig are the keys of a config.json that decide the size of the KV of a token.
type modelConfig struct {
	Type       string `json:"model_type"`
	Layers     int    `json:"num_hidden_layers"`
	Heads      int    `json:"num_attention_heads"`
	KVHeads    int    `json:"num_key_value_heads"`
	HeadDim    int    `json:"head_dim"`
	Hidden     int    `json:"hidden_size"`
	Vocabulary int    `json:"vocab_size"`
	Positions  int    `json:"max_position_embeddings"`
	LatentRank int    `json:"kv_lora_rank"`     // of latent attention: one vector for all heads, keys and values in one
	RopeDim    int    `json:"qk_rope_head_dim"` // beside the latent vector
}

// ReadModel reads a model's shape from the config.json in its folder.
func ReadModel(path string) (record.Model, error) {
	file := filepath.Join(path, "config.json")
	text, err := readConfig(file)
	if err != nil {
		return record.Model{}, fmt.Errorf("launch: %s is no folder of a model, which holds a config.json: %w", path, err)
	}
	// A model of several media has the shape of its language model one level down.
	var whole struct {
		modelConfig
		Text *modelConfig `json:"text_config"`
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		return record.Model{}, fmt.Errorf("launch: %s: %w", file, err)
	}
	c := whole.modelConfig
	if whole.Text != nil && c.Layers == 0 {
		c = *whole.Text
		c.Type = whole.Type
	}
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	perLayer := 2 * c.KVHeads * c.HeadDim * valueBytes // keys and values
	if c.LatentRank > 0 {
		c.KVHeads, c.HeadDim = 1, c.LatentRank+c.RopeDim
		perLayer = c.HeadDim * valueBytes
	}
	if c.Layers <= 0 || perLayer <= 0 || c.Vocabulary <= 0 {
		return record.Model{}, fmt.Errorf("launch: %s does not tell layers, KV heads, head size and vocabulary: a dense model's does", file)
	}
	sum := sha256.Sum256(text)
	return record.Model{
		Path: path, Type: c.Type, Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Vocabulary: c.Vocabulary, Positions: c.Positions,
		BytesPerToken: c.Layers * perLayer, ConfigSHA256: hex.EncodeToString(sum[:]),
	}, nil
}

// readConfig reads a file that must be an ordinary one of ordinary size: another might have no end, or no writer.
func readConfig(file string) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no ordinary file", file)
	case info.Size() > configBytesMax:
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", file, info.Size(), configBytesMax)
	}
	return os.ReadFile(file)
}
