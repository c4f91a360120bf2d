package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

const (
	filePrefix = Vendor + "-" + Class + "_"
	fileSuffix = ".json"
)

// Store keeps CDI files in the directory that the container runtime scans.
// Nothing is synced to disk: the directory is a tmpfs on most nodes, and after
// a power loss every claim is prepared again before a container can start.
type Store struct {
	Dir string
}

// Path is the file of a claim.
func (s Store) Path(claim types.UID) string {
	return filepath.Join(s.Dir, filePrefix+string(claim)+fileSuffix)
}

// Ensure makes the file of a claim have the content, and reports whether it had
// to be written. Readers see the old or the new file, never a part.
func (s Store) Ensure(claim types.UID, content []byte) (written bool, err error) {
	path := s.Path(claim)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	// The directory is made late and each time: it may vanish with /var/run.
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return false, fmt.Errorf("directory of CDI files: %w", err)
	}
	// Runtimes read only *.json and *.yaml, so a leftover of a crash is ignored.
	tmp, err := os.CreateTemp(s.Dir, filePrefix+string(claim)+".*.tmp")
	if err != nil {
		return false, fmt.Errorf("CDI file of claim %s: %w", claim, err)
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("CDI file of claim %s: %w", claim, err), os.Remove(tmp.Name()))
	}
	return true, nil
}

// Remove removes the file of a claim. It is no error if there is none.
func (s Store) Remove(claim types.UID) error {
	if err := os.Remove(s.Path(claim)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("CDI file of claim %s: %w", claim, err)
	}
	return nil
}

// List returns the claims that have a file.
func (s Store) List() ([]types.UID, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("directory of CDI files: %w", err)
	}
	var claims []types.UID
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), filePrefix)
		uid, whole := strings.CutSuffix(rest, fileSuffix)
		if ours && whole {
			claims = append(claims, types.UID(uid))
		}
	}
	return claims, nil
}

// Devices returns the names of the devices in the file of a claim, as given to
// Build. It serves to learn what a claim holds when its journal cannot be read.
func (s Store) Devices(claim types.UID) ([]string, error) {
	content, err := os.ReadFile(s.Path(claim))
	if err != nil {
		return nil, err
	}
	var spec cdispec.Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return nil, fmt.Errorf("CDI file of claim %s: %w", claim, err)
	}
	var names []string
	for _, device := range spec.Devices {
		if name, ours := strings.CutPrefix(device.Name, deviceName(claim, "")); ours {
			names = append(names, name)
		}
	}
	return names, nil
}
