package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// CleanMemory has the Manager evict every page from its memory; its SSD tier keeps its own. It returns how many pages left and how many of them are still
// leased.
func (k *Stack) CleanMemory(ctx context.Context) (evicted, leased int, err error) {
	token, err := os.ReadFile(k.at.socket() + ".token") // where a Manager without --admin-token-file writes it
	if err != nil {
		return 0, 0, fmt.Errorf("launch: the Manager's token: %w", err)
	}
	const path = "/cache/memory/cleanup"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, k.Manager()+path, http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, 0, fmt.Errorf("launch: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, bodyAtMost))
	if err != nil {
		return 0, 0, fmt.Errorf("launch: %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("launch: the Manager answered %s with %s: %s", path, answer.Status, strings.TrimSpace(string(body)))
	}
	var report struct {
		Evicted int `json:"evicted_blocks"`
		Leased  int `json:"still_referenced_blocks"`
	}
	if err := json.Unmarshal(body, &report); err != nil {
		return 0, 0, fmt.Errorf("launch: the Manager's answer to %s: %w", path, err)
	}
	return report.Evicted, report.Leased, nil
}
