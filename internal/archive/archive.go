// Package archive keeps what discovery read on a machine in one small file, with
// pseudonyms for what identifies the machine, so that a bug report is a test case.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
)

// Format is the version of the archive's layout:
//
//	topodra.json   the facts that are not in sysfs
//	sys/...        what was read from sysfs, under the names by which it was read
const Format = 1

// Bounds of an archive. The one of a machine with 64 NICs has 3,000 entries and
// 40 KiB.
const (
	maxEntries = 200_000
	maxContent = 64 << 20
	maxFile    = 4 << 20
	factsName  = "topodra.json"
	sysfsDir   = "sys/"
)

// facts are what discovery learns from NVML and netlink.
type facts struct {
	Format    int           `json:"format"`
	Simulated string        `json:"simulated,omitempty"`
	Unknown   *pci.Unknown  `json:"unknown,omitempty"`
	Driver    gpu.Driver    `json:"driver"`
	GPUs      []gpu.GPU     `json:"gpus"`
	GPUErrors []string      `json:"gpuErrors,omitempty"`
	Links     []netdev.Link `json:"links"`
}

// Capture scans a machine through its scanner and returns the recording. The
// scanner must not have been used before, and cannot be used afterwards.
func Capture(ctx context.Context, s *machine.Scanner) *Recording {
	recorder, root := sysfs.Record(s.Sysfs)
	s.Sysfs = root
	gpus := s.GPUs
	r := &Recording{facts: facts{Format: Format, Simulated: s.Simulated, Unknown: s.Unknown}}
	if gpus != nil {
		s.GPUs = listed(func(ctx context.Context) (gpu.Driver, []gpu.GPU, []error) {
			driver, list, errs := gpus.List(ctx)
			r.facts.Driver, r.facts.GPUs = driver, slices.Clone(list)
			for _, err := range errs {
				r.facts.GPUErrors = append(r.facts.GPUErrors, err.Error())
			}
			return driver, list, errs
		})
	}
	snapshot := s.Scan(ctx)
	r.facts.Links = slices.Clone(snapshot.Links)
	r.nodes = recorder.Nodes()
	for _, m := range snapshot.Missing {
		r.LeftOut = append(r.LeftOut, fmt.Sprintf("%s: %s", m.Part, m.Reason))
	}
	r.pseudonymize()
	return r
}

// listed is a function as a machine.GPUs.
type listed func(context.Context) (gpu.Driver, []gpu.GPU, []error)

func (f listed) List(ctx context.Context) (gpu.Driver, []gpu.GPU, []error) { return f(ctx) }

// Recording is one scan of a machine, ready to be written or scanned again.
type Recording struct {
	facts facts
	nodes map[string]sysfs.Node

	// LeftOut says what could not be read, one sentence each.
	LeftOut []string
}

// Scanner returns a scanner that sees what was recorded.
func (r *Recording) Scanner() *machine.Scanner {
	return &machine.Scanner{
		Sysfs:     sysfs.Memory(r.nodes),
		Simulated: r.facts.Simulated,
		Unknown:   r.facts.Unknown,
		GPUs: listed(func(context.Context) (gpu.Driver, []gpu.GPU, []error) {
			var errs []error
			for _, text := range r.facts.GPUErrors {
				errs = append(errs, errors.New(text))
			}
			return r.facts.Driver, slices.Clone(r.facts.GPUs), errs
		}),
		Host: func([]netdev.Link) ([]netdev.Link, error) { return slices.Clone(r.facts.Links), nil },
	}
}

// Write writes the archive. Equal recordings give equal bytes.
func (r *Recording) Write(w io.Writer) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	content, err := json.MarshalIndent(r.facts, "", "  ")
	if err != nil {
		return err
	}
	err = put(out, factsName, sysfs.Node{Data: append(content, '\n')})
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		err = errors.Join(err, put(out, sysfsDir+entryName(r.nodes, name), r.nodes[name]))
	}
	return errors.Join(err, out.Close(), zip.Close())
}

// linkSuffix keeps a link beside the files that were read through it: in an
// archive that people unpack, one name cannot be a link and a directory.
const linkSuffix = "~link"

func entryName(nodes map[string]sysfs.Node, name string) string {
	if nodes[name].Link != "" {
		return name + linkSuffix
	}
	return name
}

func put(out *tar.Writer, name string, n sysfs.Node) error {
	content := n.Data
	if n.Link != "" {
		content = []byte(n.Link)
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatPAX}
	if err := out.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err := out.Write(content)
	return err
}

// Read reads an archive. Whatever is in it, time and memory are bounded, and
// errors name the entry.
func Read(r io.Reader) (*Recording, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not an archive of topodra snapshot: %w", err)
	}
	content := &io.LimitedReader{R: zip, N: maxContent}
	in := tar.NewReader(content)
	rec := &Recording{nodes: map[string]sysfs.Node{}}
	found := false
	for entries := 0; ; entries++ {
		header, err := in.Next()
		switch {
		case content.N <= 0:
			return nil, fmt.Errorf("archive has more than %d bytes of content", int64(maxContent))
		case errors.Is(err, io.EOF) && !found:
			return nil, fmt.Errorf("not an archive of topodra snapshot: it has no %s", factsName)
		case errors.Is(err, io.EOF):
			return rec, nil
		case err != nil:
			return nil, fmt.Errorf("archive entry %d: %w", entries+1, err)
		case entries >= maxEntries:
			return nil, fmt.Errorf("archive has more than %d entries", maxEntries)
		}
		data, err := readEntry(in, header)
		if err == nil && header.Name == factsName {
			found = true
			err = rec.readFacts(data)
		} else if err == nil {
			err = rec.readNode(header.Name, data)
		}
		if err != nil {
			return nil, fmt.Errorf("archive entry %q: %w", header.Name, err)
		}
	}
}

func readEntry(in *tar.Reader, header *tar.Header) ([]byte, error) {
	if header.Typeflag != tar.TypeReg {
		return nil, errors.New("it is no regular file")
	}
	if header.Size > maxFile {
		return nil, fmt.Errorf("it has %d bytes, more than %d", header.Size, maxFile)
	}
	return io.ReadAll(in)
}

func (r *Recording) readFacts(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r.facts); err != nil {
		line := 1 + bytes.Count(data[:min(int(decoder.InputOffset()), len(data))], []byte("\n"))
		return fmt.Errorf("line %d: %w", line, err)
	}
	if r.facts.Format != Format {
		return fmt.Errorf("format %d, this program reads format %d: use the version that wrote it or a newer one", r.facts.Format, Format)
	}
	return nil
}

func (r *Recording) readNode(name string, data []byte) error {
	name, ok := strings.CutPrefix(name, sysfsDir)
	if !ok || path.Clean(name) != name || !filepath.IsLocal(name) {
		return fs.ErrInvalid
	}
	if link, ok := strings.CutSuffix(name, linkSuffix); ok {
		r.nodes[link] = sysfs.Node{Link: string(data)}
		return nil
	}
	r.nodes[name] = sysfs.Node{Data: data}
	return nil
}
