// Package metrics counts what the node agent does, for Prometheus.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
)

// Metrics records into one registry. Every series with a known set of labels
// exists from the start, so that a zero is visible.
type Metrics struct {
	registry *prometheus.Registry

	requests  *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	devices   *prometheus.GaugeVec
	excluded  prometheus.Gauge
	published prometheus.Gauge
	missing   *prometheus.GaugeVec
	scans     prometheus.Counter
	scanTime  prometheus.Gauge
	fallback  prometheus.Gauge
	prepared  prometheus.Gauge
	setAside  *prometheus.CounterVec
	refused   *prometheus.CounterVec
	attach    *prometheus.HistogramVec
	connected prometheus.Gauge
	preflight *prometheus.CounterVec
}

// Label values that are known beforehand.
var (
	methods         = []string{"prepare", "unprepare"}
	setAsideReasons = []string{"corrupt", "unsupported"}
	publishReasons  = []string{"dropped-fields", "invalid", "other"}
)

// Results of a request.
const (
	resultOK    = "ok"
	resultError = "error"
)

// New returns metrics with all series at zero.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "topodra_requests_total", Help: "Calls of the kubelet to prepare or unprepare the claims of a pod, by method and result.",
		}, []string{"method", "result"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "topodra_request_duration_seconds", Help: "Time to answer a call of the kubelet, failures included.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 45},
		}, []string{"method", "result"}),
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "topodra_published_devices", Help: "Devices in this node's ResourceSlices, by type.",
		}, []string{"type"}),
		excluded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "topodra_excluded_nics", Help: "Network functions that are never handed out; kubectl topodra topo tells why.",
		}),
		published: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "topodra_last_publish_timestamp_seconds", Help: "When this node's ResourceSlices were changed last.",
		}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "topodra_discovery_missing", Help: "1 when a source of discovery is absent or incomplete; the log says why.",
		}, []string{"part"}),
		scans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "topodra_scans_total", Help: "Scans of the machine.",
		}),
		scanTime: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "topodra_last_scan_duration_seconds", Help: "Duration of the last scan of the machine.",
		}),
		fallback: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "topodra_without_counters", Help: "1 while pairs cannot be published beside their parts because the cluster has no partitionable devices.",
		}),
		prepared: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "topodra_prepared_claims", Help: "Claims that are prepared on this node.",
		}),
		setAside: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "topodra_journal_set_aside_total", Help: "Journal files that were unreadable or from a newer version, set aside under another name.",
		}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "topodra_publish_errors_total", Help: "Times that the API server refused ResourceSlices or dropped fields of them.",
		}, []string{"reason"}),
		attach: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "topodra_attach_duration_seconds", Help: "Time to move the NICs of a pod into it when its sandbox starts, by result.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2},
		}, []string{"result"}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "topodra_nri_connected", Help: "1 while the container runtime tells the agent of sandboxes (NRI). Without it no pod gets NICs.",
		}),
		preflight: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "topodra_preflight_findings_total", Help: "What was found wrong with devices when claims were prepared, by check and level; the log and the claim's status say more.",
		}, []string{"check", "level"}),
	}
	m.registry.MustRegister(
		m.requests, m.latency, m.devices, m.excluded, m.published, m.missing, m.scans, m.scanTime, m.fallback, m.prepared, m.setAside, m.refused,
		m.attach, m.connected, m.preflight,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	for _, method := range methods {
		for _, result := range []string{resultOK, resultError} {
			m.requests.WithLabelValues(method, result)
			m.latency.WithLabelValues(method, result)
		}
	}
	for _, kind := range v1alpha1.DeviceKinds {
		m.devices.WithLabelValues(string(kind))
	}
	for _, part := range machine.Parts {
		m.missing.WithLabelValues(string(part))
	}
	for _, reason := range setAsideReasons {
		m.setAside.WithLabelValues(reason)
	}
	for _, result := range []string{resultOK, resultError} {
		m.attach.WithLabelValues(result)
	}
	for check := range v1alpha1.PreflightChecks {
		for _, level := range []v1alpha1.PreflightLevel{v1alpha1.PreflightFail, v1alpha1.PreflightWarn} {
			m.preflight.WithLabelValues(string(check), string(level))
		}
	}
	for _, reason := range publishReasons {
		m.refused.WithLabelValues(reason)
	}
	return m
}

// Call counts one call of the kubelet.
func (m *Metrics) Call(method string, took time.Duration, err error) {
	result := resultOK
	if err != nil {
		result = resultError
	}
	m.requests.WithLabelValues(method, result).Inc()
	m.latency.WithLabelValues(method, result).Observe(took.Seconds())
}

// NICsAttached counts one claim whose NICs were moved into a pod.
func (m *Metrics) NICsAttached(took time.Duration, err error) {
	result := resultOK
	if err != nil {
		result = resultError
	}
	m.attach.WithLabelValues(result).Observe(took.Seconds())
}

// NRIConnected tells whether the container runtime is connected.
func (m *Metrics) NRIConnected(yes bool) {
	m.connected.Set(0)
	if yes {
		m.connected.Set(1)
	}
}

// PreflightFound counts one finding.
func (m *Metrics) PreflightFound(check v1alpha1.PreflightCheck, level v1alpha1.PreflightLevel) {
	m.preflight.WithLabelValues(string(check), string(level)).Inc()
}

// PublishFailed counts trouble with ResourceSlices.
func (m *Metrics) PublishFailed(reason string) { m.refused.WithLabelValues(reason).Inc() }

// WithoutCounters tells whether the cluster stores no shared counters.
func (m *Metrics) WithoutCounters(yes bool) {
	m.fallback.Set(0)
	if yes {
		m.fallback.Set(1)
	}
}

// PreparedClaims tells how many claims are prepared now.
func (m *Metrics) PreparedClaims(n int) { m.prepared.Set(float64(n)) }

// JournalSetAside counts a journal file that could not be read.
func (m *Metrics) JournalSetAside(reason string) { m.setAside.WithLabelValues(reason).Inc() }

// Scanned records one scan of the machine.
func (m *Metrics) Scanned(s *machine.Snapshot, took time.Duration) {
	m.scans.Inc()
	m.scanTime.Set(took.Seconds())
	absent := map[machine.Part]float64{}
	for _, missing := range s.Missing {
		absent[missing.Part] = 1
	}
	for _, part := range machine.Parts {
		m.missing.WithLabelValues(string(part)).Set(absent[part])
	}
}

// Published records what this node offers now.
func (m *Metrics) Published(devices map[string]int, excludedNICs int, when time.Time) {
	for t, n := range devices {
		m.devices.WithLabelValues(t).Set(float64(n))
	}
	m.excluded.Set(float64(excludedNICs))
	m.published.Set(float64(when.UnixNano()) / 1e9)
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
