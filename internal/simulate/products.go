package simulate

// Architectures and brands by the numbers of nvml.h.
const (
	archPascal    = 4
	archVolta     = 5
	archTuring    = 6
	archAmpere    = 7
	archAda       = 8
	archHopper    = 9
	archBlackwell = 10

	brandTesla     = 2
	brandGeForce   = 5
	brandNvidiaRTX = 13
	brandNvidia    = 14
)

// product is what is published about a GPU model and no machine file repeats.
type product struct {
	memoryMiB    uint64 // total as nvidia-smi prints it; 0 where no print was found
	capability   string
	architecture int
	brand        int
	mig          bool
}

// products is keyed by the name that NVML gives.
var products = map[string]product{
	"NVIDIA GB300":                   {0, "10.3", archBlackwell, brandNvidia, true},
	"NVIDIA B300 SXM6 AC":            {0, "10.3", archBlackwell, brandNvidia, true},
	"NVIDIA GB200":                   {189471, "10.0", archBlackwell, brandNvidia, true},
	"NVIDIA B200":                    {183359, "10.0", archBlackwell, brandNvidia, true},
	"NVIDIA H200":                    {143771, "9.0", archHopper, brandNvidia, true},
	"NVIDIA H100 80GB HBM3":          {81559, "9.0", archHopper, brandNvidia, true},
	"NVIDIA A100-SXM4-80GB":          {81920, "8.0", archAmpere, brandNvidia, true},
	"NVIDIA A100-SXM4-40GB":          {40960, "8.0", archAmpere, brandNvidia, true},
	"NVIDIA A100-PCIE-40GB":          {40960, "8.0", archAmpere, brandNvidia, true},
	"NVIDIA A800":                    {0, "8.0", archAmpere, brandNvidia, true}, // sold with 40 and with 80 GB
	"NVIDIA A40":                     {46068, "8.6", archAmpere, brandNvidia, false},
	"NVIDIA A10G":                    {23028, "8.6", archAmpere, brandNvidia, false},
	"NVIDIA RTX 6000 Ada Generation": {49140, "8.9", archAda, brandNvidiaRTX, false},
	"Tesla T4":                       {15360, "7.5", archTuring, brandTesla, false},
	"Tesla V100-SXM3-32GB":           {32768, "7.0", archVolta, brandTesla, false},
	"Tesla V100-SXM2-32GB":           {32768, "7.0", archVolta, brandTesla, false},
	"Tesla V100-SXM2-16GB":           {16384, "7.0", archVolta, brandTesla, false},
	"NVIDIA GeForce GTX 1070":        {8192, "6.1", archPascal, brandGeForce, false},
	"NVIDIA RTX PRO 6000 Blackwell Server Edition": {97887, "12.0", archBlackwell, brandNvidiaRTX, true},
}

// architectureNames are those that internal/nvml gives to the numbers.
var architectureNames = map[int]string{
	archPascal: "Pascal", archVolta: "Volta", archTuring: "Turing", archAmpere: "Ampere",
	archAda: "Ada Lovelace", archHopper: "Hopper", archBlackwell: "Blackwell",
}
