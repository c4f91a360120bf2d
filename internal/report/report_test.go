package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/report"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/testing/golden"
	"github.com/topodra/topodra/internal/topology"
)

// kept are machines whose reports lie in testdata in every format: two switch levels and shared
// NICs; folded columns, NICs without RDMA and excluded ones; a tree known in part.
var kept = []string{"h200-4cx7-snc-baremetal", "aws-p6-b200-48xl", "dgx-a100"}

// pictures are those of docs/topo.md.
var pictures = map[string]string{
	"h200":  "h200-4cx7-snc-baremetal",
	"gb200": "aws-p6e-gb200-36xl",
	"p5":    "aws-p5-48xl",
}

func load(t testing.TB, slug string) *report.Report {
	t.Helper()
	m := simulatetest.Load(t, slug)
	s, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report.New(slug, s, topology.Compute(s, topology.Config{Excluded: m.Roles()}))
}

func render(t testing.TB, format string, r *report.Report) string {
	t.Helper()
	f, err := report.ParseFormat(format)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := f.Render(&b, r); err != nil {
		t.Fatalf("%s of %s: %v", format, r.Machine, err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for _, slug := range kept {
		r := load(t, slug)
		for _, f := range report.Formats {
			golden.Expect(t, filepath.Join("testdata", slug+"."+f.Name), render(t, f.Name, r))
		}
	}
}

func TestPicturesOfDocs(t *testing.T) {
	docs := filepath.Join(simulatetest.ModuleRoot(t), "docs/pictures")
	for name, slug := range pictures {
		golden.Expect(t, filepath.Join(docs, name+".svg"), render(t, "svg", load(t, slug)))
	}
}

func TestEveryMachine(t *testing.T) {
	for _, slug := range simulatetest.Slugs(t) {
		r := load(t, slug)
		checkSVG(t, r)
		checkText(t, r)
		checkEncodings(t, r)
	}
}

// checkSVG wants well-formed XML that shows every GPU and every fabric NIC once.
func checkSVG(t *testing.T, r *report.Report) {
	t.Helper()
	texts := map[string]int{}
	decoder := xml.NewDecoder(strings.NewReader(render(t, "svg", r)))
	inText := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("picture of %s: %v", r.Machine, err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
		case xml.CharData:
			if inText {
				texts[string(token)]++
			}
		}
	}
	for _, g := range r.GPUs {
		if texts[g.Address.String()] != 1 {
			t.Errorf("picture of %s: GPU %s is there %d times", r.Machine, g.Address, texts[g.Address.String()])
		}
	}
	for _, n := range r.NICs {
		if n.Fabric() && texts[n.Address.String()] != 1 {
			t.Errorf("picture of %s: NIC %s is there %d times", r.Machine, n.Address, texts[n.Address.String()])
		}
	}
}

// checkText wants lines that fit, and every NIC that is not handed out.
func checkText(t *testing.T, r *report.Report) {
	t.Helper()
	for _, format := range []string{"matrix", "wide"} {
		for line := range strings.Lines(render(t, format, r)) {
			line = strings.TrimSuffix(line, "\n")
			if format == "matrix" && utf8.RuneCountInString(line) > 120 {
				t.Errorf("%s: more than 120 columns: %s", r.Machine, line)
			}
			if strings.TrimRight(line, " ") != line {
				t.Errorf("%s: spaces at the end of %q", r.Machine, line)
			}
		}
	}
}

func checkEncodings(t *testing.T, r *report.Report) {
	t.Helper()
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(b []byte, v any) error { return yaml.UnmarshalStrict(b, v) },
	} {
		var got report.Report
		if err := decode([]byte(render(t, format, r)), &got); err != nil {
			t.Fatalf("%s of %s: %v", format, r.Machine, err)
		}
		if diff := cmp.Diff(r, &got); diff != "" {
			t.Errorf("%s of %s does not come back (-want +got):\n%s", format, r.Machine, diff)
		}
	}
}

// The same machine gives the same bytes, whatever the order of maps.
func TestDeterministic(t *testing.T) {
	for _, slug := range []string{"aws-p5-48xl", "azure-ndv5-h100", "h200-4cx7-snc-baremetal"} {
		for _, f := range report.Formats {
			first := render(t, f.Name, load(t, slug))
			for range 3 {
				if diff := cmp.Diff(first, render(t, f.Name, load(t, slug))); diff != "" {
					t.Fatalf("%s of %s differs from one time to the next:\n%s", f.Name, slug, diff)
				}
			}
		}
	}
}

// JSON has the keys that issue trackers and scripts rely on, null for unknown.
func TestJSONOfUnknownValues(t *testing.T) {
	addr := pci.MustParseAddress("0000:01:00.0")
	r := &report.Report{
		Machine: "m",
		GPUs:    []report.GPU{{Address: addr}},
		NICs:    []report.NIC{{Address: addr, Card: addr}},
		Distances: map[pci.Address]map[pci.Address]topology.Class{
			addr: {addr: topology.Unknown},
		},
		Pairs: []report.Pair{},
	}
	const want = `{"machine":"m","simulated":false,` +
		`"gpus":[{"index":0,"address":"0000:01:00.0","uuid":null,"name":null,"numaNode":null,"pcieRoot":null,"pcieSwitch":null,"affinityGroup":null,"nearest":null}],` +
		`"nics":[{"address":"0000:01:00.0","ifName":null,"rdmaDevice":null,"card":"0000:01:00.0","numaNode":null,"pcieRoot":null,"pcieSwitch":null,"affinityGroup":null,"rail":null,"railSource":null,"published":false,"reason":null}],` +
		`"distances":{"0000:01:00.0":{"0000:01:00.0":"unknown"}},"pairs":[]}`
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(render(t, "json", r))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, compact.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Interface names may hold almost any byte; no format may break on them.
func TestHostileNames(t *testing.T) {
	r := load(t, "aws-p6-b200-48xl")
	evil := "<a href=\"x\">&'\\\x1b[31m\x00]]>\xff\n"
	for i := range r.NICs {
		r.NICs[i].IfName, r.NICs[i].RDMADevice = &evil, nil
		if r.NICs[i].Rail != nil {
			r.NICs[i].RDMADevice = &evil
		}
	}
	r.GPUs[0].Name, r.Machine = &evil, evil
	r.NICs[0].Published, r.NICs[0].Reason = false, &evil
	checkSVG(t, r)
	for _, format := range []string{"matrix", "wide", "dot"} {
		if strings.ContainsAny(render(t, format, r), "\x1b\x00") {
			t.Errorf("%s lets control characters through to the terminal", format)
		}
	}
}

func TestColor(t *testing.T) {
	r := load(t, "h200-4cx7-snc-baremetal")
	var colored bytes.Buffer
	if err := (report.Text{Color: true}).Render(&colored, r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(colored.String(), "\x1b[1;32mPIX*\x1b[0m") {
		t.Error("the nearest NIC does not stand out")
	}
	stripped := colored.String()
	for _, sequence := range []string{"\x1b[0m", "\x1b[1;32m", "\x1b[1m", "\x1b[2m"} {
		stripped = strings.ReplaceAll(stripped, sequence, "")
	}
	if diff := cmp.Diff(render(t, "matrix", r), stripped); diff != "" {
		t.Errorf("colors change the text:\n%s", diff)
	}
}

func TestParseFormat(t *testing.T) {
	if _, err := report.ParseFormat("xml"); err == nil || err.Error() != `output format "xml" is none of matrix, wide, json, yaml, dot, svg` {
		t.Error(err)
	}
}
