// Cost volumes and class shares on a GPU.
#include "search.hpp"

#include <algorithm>
#include <limits>

#include "seam.hpp"
#include "supports.hpp"
#include "terms.hpp"

namespace regweave::gpu {

namespace {

std::size_t words(const std::array<std::vector<std::int32_t>, 3>& starts,
                  const std::array<std::vector<double>, 3>& offsets) {
    std::size_t n = 0;
    for (const auto& s : starts) n += s.size();
    for (const auto& o : offsets) n += 2 * o.size();
    return n;
}

}  // namespace

Search::Search(const std::shared_ptr<Queue>& queue, std::array<std::size_t, 3> shape,
               const std::array<std::vector<std::int32_t>, 3>& starts, std::array<int, 3> size,
               const std::array<std::vector<double>, 3>& offsets)
    : memory_(queue, 'i', {words(starts, offsets)}), patches_{}, reach_{} {
    require_grid(shape, "the grid of voxels");
    std::vector<std::int32_t> host, whole;
    std::vector<float> fraction;
    for (int a = 0; a < 3; ++a) {
        const int n = int(shape[a]);
        patches_.grid.n[a] = n;
        patches_.nodes[a] = int(starts[a].size());
        patches_.size[a] = size[a];
        patches_.labels[a] = int(offsets[a].size());
        require(size[a] >= 1 && size[a] <= n,
                "a support must have a voxel along each axis and no more than the image");
        require(!starts[a].empty() && !offsets[a].empty(),
                "there must be a node and a label along each axis");
        for (std::int32_t s : starts[a]) {
            require(s >= 0 && s <= n - size[a], "supports must lie inside the image");
            host.push_back(s);
        }
        for (double d : offsets[a]) {
            const Shift shift = Shift::of(d, n);
            whole.push_back(shift.whole);
            fraction.push_back(shift.fraction);
        }
        const auto [low, high] =
            std::minmax_element(whole.end() - std::ptrdiff_t(offsets[a].size()), whole.end());
        reach_.low[a] = *low;
        reach_.n[a] = size[a] + *high - *low + 1;
    }
    std::int32_t* device = memory_.data<std::int32_t>(1);
    patches_.starts = device;
    patches_.whole = device + host.size();
    patches_.fraction = reinterpret_cast<const float*>(device + host.size() + whole.size());
    host.insert(host.end(), whole.begin(), whole.end());
    const std::size_t at = host.size();
    host.resize(at + fraction.size());
    std::memcpy(host.data() + at, fraction.data(), sizeof(float) * fraction.size());
    queue->upload(device, host.data(), memory_.bytes());
}

const float* Search::features(const Array& a) const {
    require_same(a.extent(), patches_.grid, "features do not fit the grid that is searched");
    return a.data<float>(4);
}

namespace {

// A row (1, N, L) or (N, L) of a volume of costs.
float* row_of(const Search& s, const Array& out) {
    require(out.type() == 'f' && out.size() == s.n_nodes() * s.n_labels(),
            "the row of costs must have shape (N, L)");
    return static_cast<float*>(out.raw());
}

int channels_of(const Array& fixed, const Array& moved) {
    require(fixed.shape() == moved.shape(), "fixed and moved features differ in shape");
    return int(fixed.shape()[0]);
}

Index count(const Search& s) { return Index(s.n_nodes() * s.n_labels()); }

constexpr std::size_t kSharedBytes = 48 * 1024;
constexpr std::size_t kMostThreads = 256;

// Costs with a block for each node, `rest` bytes of its memory for what follows the images; false where they
// do not fit.
template <class Body>
bool in_blocks(const Search& s, const Body& body, int channels, std::size_t rest) {
    const Patches& p = s.patches();
    double numbers = 1;  // the product of reaches may be beyond any integer
    for (int n : s.reach().n) numbers *= n;
    if (numbers > double(kSharedBytes)) return false;
    const std::size_t bytes = sizeof(float) * std::size_t(s.reach().staged(p, channels)) + rest;
    if (bytes > kSharedBytes) return false;
#if defined(REGWEAVE_TWIN)
    for (Index node = 0; node < p.n_nodes(); ++node) {
        std::vector<float> room(bytes / sizeof(float) + 1, std::numeric_limits<float>::quiet_NaN());
        costs_of_node(body, Block{0, 1, node, room.data()});
    }
#else
    Body argument = body;
    void* arguments[] = {&argument};
    const std::size_t threads = (s.n_labels() * std::size_t(p.size[2]) + 31) / 32 * 32;
    s.queue().launch_named(KernelName<Body>::value, p.n_nodes(), int(std::min(threads, kMostThreads)),
                           arguments, bytes);
#endif
    return true;
}

template <class Term>
void box_costs(const Search& s, const BoxCost<Term>& body, bool plain) {
    const std::size_t sheets = sizeof(float) * Term::terms * s.n_labels() * std::size_t(s.patches().size[2]);
    if (plain || !in_blocks(s, StagedBox<Term>{body, s.reach()}, body.channels, sheets))
        s.queue().launch(body, count(s));
}

void sad_costs(const Search& s, const Array& fixed, const Array& moved, const Array& out, bool plain) {
    const int channels = channels_of(fixed, moved);
    const AbsoluteDifference term{1.0 / (double(s.patches().voxels()) * channels)};
    box_costs(
        s,
        SadCost{s.patches(), term, s.features(fixed), s.features(moved), channels, nullptr, row_of(s, out)},
        plain);
}

void ngf_costs(const Search& s, const Array& fixed, const Array& moved, const Array& out, bool plain) {
    const TensorDifference term{1.0 / s.patches().voxels()};
    box_costs(s,
              NgfCost{s.patches(), term, s.features(fixed), s.features(moved), channels_of(fixed, moved),
                      nullptr, row_of(s, out)},
              plain);
}

void ncc_costs(const Search& s, const Array& fixed, const Array& moved, const Array& out, double floor,
               bool squared, bool plain) {
    require(std::isfinite(floor) && floor > 0, "the floor of the variance must be positive");
    require(channels_of(fixed, moved) == 1, "this cost takes one channel");
    Array moments = make<double>(fixed, {s.n_nodes(), 2});
    s.queue().launch(FixedMoments{s.patches(), s.features(fixed), floor, moments.data<double>(2)},
                     Index(s.n_nodes()));
    box_costs(s,
              NccCost{s.patches(),
                      {double(s.patches().voxels()), floor, squared},
                      s.features(fixed),
                      s.features(moved),
                      1,
                      moments.data<double>(2),
                      row_of(s, out)},
              plain);
}

void mi_costs(const Search& s, const Array& fixed, const Array& moved, const Array& out, int bins,
              const Array& n_log_n, bool plain) {
    require(channels_of(fixed, moved) == 1, "this cost takes one channel");
    require(bins == 8 || bins == 16, "mutual information takes 8 or 16 bins");
    const Patches& p = s.patches();
    require(p.voxels() <= 65535, "a support has more voxels than can be counted");
    require(n_log_n.size() > std::size_t(p.voxels()), "the table of n log n is too short");
    const float *f = s.features(fixed), *m = s.features(moved), *table = n_log_n.data<float>(1);
    if (bins == 16) {
        s.queue().launch(EntropyCost16{p, f, m, table, row_of(s, out)}, count(s));
        return;
    }
    const EntropyCost8 body{p, f, m, table, row_of(s, out)};
    const std::size_t rest = s.n_labels() * (8 * sizeof(float) + std::size_t(p.size[2]) * kHistogramRow);
    const bool countable = p.size[0] * p.size[1] <= 255;
    if (plain || !countable || !in_blocks(s, StagedEntropy{body, s.reach()}, 1, rest))
        s.queue().launch(body, count(s));
}

void dwt_costs(const Search& s, const Array& fixed, const Array& moved, const Array& out, bool plain) {
    require(channels_of(fixed, moved) == 1, "this cost takes one channel");
    for (int n : s.patches().size) require(n % 4 == 0, "the wavelet support must be a multiple of 4 voxels");
    const HaarCost body{s.patches(), s.features(fixed), s.features(moved), row_of(s, out)};
    const std::size_t rest = sizeof(float) * 3 * s.n_labels() * std::size_t(s.patches().voxels() / 8);
    if (plain || !in_blocks(s, StagedHaar{body, s.reach()}, 1, rest)) s.queue().launch(body, count(s));
}

Array support_mean(const Search& s, const Array& values) {
    require_same(values.extent(), s.patches().grid, "values do not fit the grid that is searched");
    Array out = make<float>(values, {s.n_nodes()});
    s.queue().launch(SupportMean{s.patches(), values.data<float>(3), out.data<float>(1)}, Index(s.n_nodes()));
    return out;
}

Array class_shares(const Search& s, const Array& numbers, int classes, bool displaced, int rule,
                   double foreground) {
    require_same(numbers.extent(), s.patches().grid, "numbers do not fit the grid that is searched");
    require(classes >= 1 && rule >= 0 && rule <= 2, "there must be a class, and the rule be 0, 1 or 2");
    std::vector<std::size_t> shape{s.n_nodes()};
    if (displaced) shape.push_back(s.n_labels());
    shape.push_back(std::size_t(classes));
    Array out = make<float>(numbers, shape);
    float* shares = static_cast<float*>(out.raw());
    s.queue().launch(ClassShares{s.patches(), numbers.data<std::int32_t>(3), classes, displaced, shares},
                     Index(out.size()));
    s.queue().launch(ClassRule{shares, classes, rule, float(foreground)}, Index(out.size()) / classes);
    return out;
}

}  // namespace

void register_search(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Search>(m, "Search")
        .def(nb::init<const std::shared_ptr<Queue>&, std::array<std::size_t, 3>,
                      const std::array<std::vector<std::int32_t>, 3>&, std::array<int, 3>,
                      const std::array<std::vector<double>, 3>&>(),
             "queue"_a, "shape"_a, "starts"_a, "size"_a, "offsets"_a)
        .def_prop_ro("n_nodes", &Search::n_nodes)
        .def_prop_ro("n_labels", &Search::n_labels);
    m.def("sad_costs", &sad_costs, "search"_a, "fixed"_a, "moved"_a, "out"_a, "plain"_a = false);
    m.def("ngf_costs", &ngf_costs, "search"_a, "fixed"_a, "moved"_a, "out"_a, "plain"_a = false);
    m.def("ncc_costs", &ncc_costs, "search"_a, "fixed"_a, "moved"_a, "out"_a, "floor"_a, "squared"_a,
          "plain"_a = false);
    m.def("mi_costs", &mi_costs, "search"_a, "fixed"_a, "moved"_a, "out"_a, "bins"_a, "n_log_n"_a,
          "plain"_a = false);
    m.def("dwt_costs", &dwt_costs, "search"_a, "fixed"_a, "moved"_a, "out"_a, "plain"_a = false);
    m.def("support_mean", &support_mean, "search"_a, "values"_a, "Mean over the support of each node, (N,).");
    m.def("class_shares", &class_shares, "search"_a, "numbers"_a, "classes"_a, "displaced"_a, "rule"_a,
          "foreground"_a, "Columns of W that each node, (N, C), or label, (N, L, C), uses.");
}

}  // namespace regweave::gpu
