package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// InstallHook copies nvidia-cdi-hook from the agent's image to the data
// directory, where the container runtime sees it under the same path. It returns
// the path, or "" when the image has no hook.
func InstallHook(source, dataDir string) (string, error) {
	content, err := os.ReadFile(source)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("CDI hook: %w", err)
	}
	target := filepath.Join(dataDir, filepath.Base(source))
	if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, content) {
		return target, nil // it may be running: a container starts right now
	}
	if err := os.MkdirAll(dataDir, 0o750); err != nil {
		return "", fmt.Errorf("CDI hook: %w", err)
	}
	if err := renameio.WriteFile(target, content, 0o755); err != nil {
		return "", fmt.Errorf("CDI hook: %w", err)
	}
	return target, nil
}
