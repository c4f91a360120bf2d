package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --log-format=json

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/agent"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/links"
)

type agentFlags struct {
	agent.Options
	agent.Hardware
	podUID     string
	kubeconfig string
	configFile string
	simulate   string
	links      bool
	double     string
	hook       string
	gate       string
	qps        float32
	burst      int
	logFormat  string
	verbosity  uint32
}

func agentCommand() *cobra.Command {
	f := agentFlags{}
	cmd := &cobra.Command{
		Use:   "topodra",
		Short: "Publish this node's GPUs and NICs and prepare them for pods",
		Long: "topodra runs on every node. It publishes GPUs and NICs with their topology as ResourceSlices and\n" +
			"prepares the claims that the kubelet brings. Every flag can also be set by an environment variable:\n" +
			"--kube-api-qps is TOPODRA_KUBE_API_QPS.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := environment(cmd.Flags()); err != nil {
				return err
			}
			for _, flag := range []string{"sysfs-root", "driver-root-host"} {
				if f.simulate != "" && cmd.Flags().Changed(flag) {
					return fmt.Errorf("--simulate and --%s contradict each other: a simulated node has roots of its own", flag)
				}
			}
			return f.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.NodeName, "node-name", "", "name of this node; also from NODE_NAME")
	flags.StringVar(&f.podUID, "pod-uid", "", "UID of this pod, for sockets of their own during a rolling update; also from POD_UID")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "path of a kubeconfig; empty inside a cluster")
	flags.StringVar(&f.configFile, "config", "", "path of the driver's configuration (kind DriverConfig)")
	flags.StringVar(&f.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's root directory")
	flags.StringVar(&f.CDIDir, "cdi-dir", "/var/run/cdi", "directory of CDI files that the container runtime scans")
	flags.StringVar(&f.HTTPAddress, "http-address", ":9464", "where to serve /metrics, /livez and /healthz; empty for nowhere")
	flags.StringVar(&f.HTTPSocket, "http-socket", "", "unix socket that serves the same, for probes")
	flags.StringVar(&f.SysfsRoot, "sysfs-root", "/sys", "directory with bus, class and devices")
	flags.StringVar(&f.DriverRoot, "driver-root", "/", "root of the host with the NVIDIA driver, as this process sees it")
	flags.StringVar(&f.DriverRootHost, "driver-root-host", "/", "the same root as the container runtime sees it")
	flags.StringVar(&f.hook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook in this container; it is copied to where the container runtime can run it")
	flags.StringVar(&f.NRISocket, "nri-socket", podnet.DefaultNRISocket, "NRI socket of the container runtime, which tells of pods whose NICs are to be moved")
	flags.StringVar(&f.gate, "gate-hook", "/usr/bin/topodra-hook", "topodra-hook in this container; it is copied to where the container runtime can run it")
	flags.StringVar(&f.simulate, "simulate", "", "machine file: show that machine instead of this one, for trying things out without GPUs")
	flags.BoolVar(&f.links, "simulate-links", false, "give simulated NICs virtual interfaces that move into pods")
	flags.StringVar(&f.double, "nvml-double", simulate.DefaultNVMLDouble, "double of libnvidia-ml.so.1 for --simulate")
	flags.Float32Var(&f.qps, "kube-api-qps", 200, "requests per second to the API server")
	flags.IntVar(&f.burst, "kube-api-burst", 400, "requests to the API server that may exceed the rate")
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json")
	flags.Uint32VarP(&f.verbosity, "v", "v", 2, "verbosity of the log: 2 tells each claim's way, 4 each step, 6 every message")
	return cmd
}

func (f *agentFlags) run(ctx context.Context) error {
	logging := logsapi.NewLoggingConfiguration()
	logging.Format, logging.Verbosity = f.logFormat, logsapi.VerbosityLevel(f.verbosity)
	if err := logsapi.ValidateAndApply(logging, nil); err != nil {
		return err
	}
	f.PodUID = types.UID(f.podUID)
	if err := f.Validate(); err != nil {
		return err
	}
	var err error
	if f.Config, err = f.config(); err != nil {
		return err
	}
	if f.KubeClient, err = f.client(); err != nil {
		return err
	}
	if f.HookPath, err = agent.InstallHook(f.hook, agent.DataDir(f.KubeletDir)); err != nil {
		return err
	}
	if f.GateHook, err = agent.InstallHook(f.gate, agent.DataDir(f.KubeletDir)); err != nil {
		return err
	}
	if f.GateHook == "" {
		return fmt.Errorf("%s is missing: without it a pod could start without its NICs", f.gate)
	}
	if f.simulate == "" {
		f.Machine = agent.Real(f.Hardware)
	} else if f.Machine, err = agent.Simulated(f.simulate, agent.DataDir(f.KubeletDir), f.DriverRoot, f.double, f.HookPath); err != nil {
		return err
	} else if f.links {
		if err := links.Make(f.NodeName, f.Machine.Links); err != nil {
			return err
		}
		go links.Keep(ctx, f.Machine.Links)
	}
	a, err := agent.New(f.Options)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func (f *agentFlags) config() (v1alpha1.DriverConfig, error) {
	if f.configFile == "" {
		return v1alpha1.DefaultDriverConfig(), nil
	}
	data, err := os.ReadFile(f.configFile)
	if err != nil {
		return v1alpha1.DriverConfig{}, err
	}
	config, err := v1alpha1.ParseDriverConfig(data)
	if err != nil {
		return config, fmt.Errorf("%s: %w", f.configFile, err)
	}
	return config, nil
}

func (f *agentFlags) client() (kubernetes.Interface, error) {
	load := rest.InClusterConfig
	if f.kubeconfig != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", f.kubeconfig) }
	}
	config, err := load()
	if err != nil {
		return nil, fmt.Errorf("API server: %w; set --kubeconfig outside of a cluster", err)
	}
	// client-go's default of 5 requests per second would make the pods of one
	// rollout wait for each other.
	config.QPS, config.Burst = f.qps, f.burst
	// Protobuf costs the API server and the agent less than JSON.
	config.AcceptContentTypes, config.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
	config.UserAgent = filepath.Base(os.Args[0]) + "/" + v1alpha1.Group
	return kubernetes.NewForConfig(config)
}
