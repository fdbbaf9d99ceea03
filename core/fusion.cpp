// Joint label fusion: weights of warped atlases from the errors that they have in common (Wang et al. 2013).
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;
constexpr int kSlab = 8;            // Planes of a task; it does not depend on the threads, nor do the sums.
constexpr double kNothing = 1e-12;  // Error that every atlas has, so that perfect matches weigh alike.
constexpr float kFlat = 1e-6f;      // Variance below which a patch has no pattern, of images of variance 1.

struct Offset {
    int x, y, z;
};

// Offsets of a cube, the nearest to its middle first: of equal matches the first is taken.
std::vector<Offset> offsets_of(int radius) {
    std::vector<Offset> out;
    for (int x = -radius; x <= radius; ++x)
        for (int y = -radius; y <= radius; ++y)
            for (int z = -radius; z <= radius; ++z) out.push_back({x, y, z});
    const auto far = [](const Offset& o) { return o.x * o.x + o.y * o.y + o.z * o.z; };
    std::stable_sort(out.begin(), out.end(),
                     [&](const Offset& a, const Offset& b) { return far(a) < far(b); });
    return out;
}

// A padded grid; voxels with a whole patch and search around them lie `margin` inside of it.
struct Grid {
    Shape n;
    std::size_t at(std::size_t x, std::size_t y, std::size_t z) const { return (x * n[1] + y) * n[2] + z; }
    std::ptrdiff_t step(const Offset& o) const {
        return (std::ptrdiff_t(o.x) * std::ptrdiff_t(n[1]) + o.y) * std::ptrdiff_t(n[2]) + o.z;
    }
    std::size_t size() const { return n[0] * n[1] * n[2]; }
};

// Mean and inverse standard deviation of the patch around each voxel that has a whole one; 0 where it is
// flat.
void patch_moments(const float* image, const Grid& grid, int patch, float* mean, float* inverse) {
    const auto& n = grid.n;
    const double count = std::pow(2 * patch + 1, 3);
    parallel_for(int(n[0]), [&](int x) {
        for (std::size_t y = 0; y < n[1]; ++y)
            for (std::size_t z = 0; z < n[2]; ++z) {
                const std::size_t v = grid.at(std::size_t(x), y, z);
                mean[v] = inverse[v] = 0;
                const auto inside = [patch](std::size_t i, std::size_t length) {
                    return i >= std::size_t(patch) && i + std::size_t(patch) < length;
                };
                if (!inside(std::size_t(x), n[0]) || !inside(y, n[1]) || !inside(z, n[2])) continue;
                double sum = 0, squares = 0;
                for (int i = -patch; i <= patch; ++i)
                    for (int j = -patch; j <= patch; ++j) {
                        const float* row = image + std::ptrdiff_t(v) + grid.step({i, j, 0});
                        for (int k = -patch; k <= patch; ++k)
                            sum += row[k], squares += double(row[k]) * row[k];
                    }
                const double m = sum / count, variance = squares / count - m * m;
                mean[v] = float(m);
                inverse[v] = variance > kFlat ? float(1 / std::sqrt(variance)) : 0.0f;
            }
    });
}

struct Moments {
    std::vector<float> mean, inverse;
    Moments(const float* image, const Grid& grid, int patch) : mean(grid.size()), inverse(grid.size()) {
        patch_moments(image, grid, patch, mean.data(), inverse.data());
    }
};

// Best offset of one atlas for the voxels to visit in planes [first, last): the largest correlation of
// patches.
void search(const float* target, const Moments& here, const float* atlas, const Moments& there,
            const Grid& grid, const std::uint8_t* visit, const std::vector<Offset>& offsets, int patch,
            std::size_t first, std::size_t last, std::int32_t* best) {
    const auto& n = grid.n;
    const std::size_t p = std::size_t(patch), low = first - p, planes = last - first + 2 * p, rows = n[1];
    // Rows that a visited voxel needs, and the voxels along them.
    std::vector<std::uint8_t> own(planes * rows), needed(planes * rows);
    std::size_t begin = n[2], end = 0;
    for (std::size_t x = first; x < last; ++x)
        for (std::size_t y = 0; y < rows; ++y)
            for (std::size_t z = 0; z < n[2]; ++z)
                if (visit[grid.at(x, y, z)]) {
                    own[(x - low) * rows + y] = 1, begin = std::min(begin, z), end = std::max(end, z + 1);
                    for (std::size_t i = 0; i <= 2 * p; ++i)
                        for (std::size_t j = 0; j <= 2 * p; ++j)
                            needed[(x - low - p + i) * rows + y - p + j] = 1;
                }
    if (begin >= end) return;
    const std::size_t length = end - begin;
    const float count = float((2 * patch + 1) * (2 * patch + 1) * (2 * patch + 1));
    std::vector<float> product(length + 2 * p), along(planes * rows * length), across(planes * rows * length),
        top((last - first) * rows * length, -2.0f), sum(length);
    for (const Offset& o : offsets) {
        const std::ptrdiff_t shift = grid.step(o);
        for (std::size_t x = 0; x < planes; ++x)
            for (std::size_t y = 0; y < rows; ++y) {
                if (!needed[x * rows + y]) continue;
                const float* a = target + grid.at(x + low, y, begin - p);
                const float* b = atlas + std::ptrdiff_t(grid.at(x + low, y, begin - p)) + shift;
                for (std::size_t z = 0; z < length + 2 * p; ++z) product[z] = a[z] * b[z];
                float* out = along.data() + (x * rows + y) * length;
                std::copy_n(product.data(), length, out);
                for (std::size_t k = 1; k <= 2 * p; ++k)
                    for (std::size_t z = 0; z < length; ++z) out[z] += product[z + k];
            }
        for (std::size_t x = 0; x < planes; ++x)
            for (std::size_t y = p; y + p < rows; ++y) {
                bool used = false;  // by a visited row of the planes around
                for (std::size_t i = 0; i <= 2 * p && !used; ++i)
                    used = x + p >= i && x + p - i < planes && own[(x + p - i) * rows + y];
                if (!used) continue;
                float* out = across.data() + (x * rows + y) * length;
                std::copy_n(along.data() + (x * rows + y - p) * length, length, out);
                for (std::size_t j = 1; j <= 2 * p; ++j) {
                    const float* in = along.data() + (x * rows + y - p + j) * length;
                    for (std::size_t z = 0; z < length; ++z) out[z] += in[z];
                }
            }
        for (std::size_t x = first; x < last; ++x)
            for (std::size_t y = p; y + p < rows; ++y) {
                if (!own[(x - low) * rows + y]) continue;
                std::copy_n(across.data() + ((x - first) * rows + y) * length, length, sum.data());
                for (std::size_t i = 1; i <= 2 * p; ++i) {
                    const float* in = across.data() + ((x - first + i) * rows + y) * length;
                    for (std::size_t z = 0; z < length; ++z) sum[z] += in[z];
                }
                const std::size_t v = grid.at(x, y, begin), w = std::size_t(std::ptrdiff_t(v) + shift);
                float* high = top.data() + ((x - first) * rows + y) * length;
                for (std::size_t z = 0; z < length; ++z) {
                    const float likeness = (sum[z] / count - here.mean[v + z] * there.mean[w + z]) *
                                           here.inverse[v + z] * there.inverse[w + z];
                    if (likeness > high[z]) high[z] = likeness, best[v + z] = std::int32_t(shift);
                }
            }
    }
}

// Weights that minimise the expected error, from M of eq. (9): M w = 1 by Cholesky, those below 0 left out.
void solve_weights(const double* m, int n, double* w, std::vector<double>& l, std::vector<int>& used) {
    used.clear();
    for (int i = 0; i < n; ++i) used.push_back(i);
    for (;;) {
        const int k = int(used.size());
        for (int i = 0; i < k; ++i) {
            for (int j = 0; j <= i; ++j) {
                double s = m[used[std::size_t(i)] * n + used[std::size_t(j)]];
                for (int q = 0; q < j; ++q) s -= l[std::size_t(i * n + q)] * l[std::size_t(j * n + q)];
                l[std::size_t(i * n + j)] =
                    i == j ? std::sqrt(std::max(s, 1e-12)) : s / l[std::size_t(j * n + j)];
            }
        }
        std::fill(w, w + n, 0.0);
        std::vector<double> y(used.size());
        for (int i = 0; i < k; ++i) {
            double s = 1;
            for (int q = 0; q < i; ++q) s -= l[std::size_t(i * n + q)] * y[std::size_t(q)];
            y[std::size_t(i)] = s / l[std::size_t(i * n + i)];
        }
        for (int i = k - 1; i >= 0; --i) {
            double s = y[std::size_t(i)];
            for (int q = i + 1; q < k; ++q) s -= l[std::size_t(q * n + i)] * y[std::size_t(q)];
            y[std::size_t(i)] = s / l[std::size_t(i * n + i)];
        }
        int worst = -1;
        double total = 0;
        for (int i = 0; i < k; ++i) {
            total += y[std::size_t(i)];
            if (y[std::size_t(i)] < 0 && (worst < 0 || y[std::size_t(i)] < y[std::size_t(worst)])) worst = i;
        }
        if (worst < 0) {
            for (int i = 0; i < k; ++i) w[used[std::size_t(i)]] = y[std::size_t(i)] / total;
            return;
        }
        used.erase(used.begin() + worst);
    }
}

std::tuple<Out<std::int32_t>, Out<float>> joint_fusion(In<float, 3> target, In<float, 4> images,
                                                       In<std::int32_t, 4> labels, In<std::uint8_t, 3> decide,
                                                       int classes, int patch, int reach, double alpha,
                                                       double beta) {
    const Shape n = require_volume(target, "the target");
    const std::size_t atlases = images.shape(0);
    require(require_volume(images, "the images") == n && require_volume(labels, "the labels") == n &&
                require_volume(decide, "the voxels to decide") == n && labels.shape(0) == atlases,
            "target, images, labels and voxels to decide do not fit");
    require(atlases <= 1000, "there are at most 1000 atlases");
    require(patch >= 1 && patch <= 5 && reach >= 0 && reach <= 9, "patch is 1 to 5, reach 0 to 9");
    require(classes >= 1 && classes <= 1000000, "there are 1 to 1000000 classes");
    require(std::isfinite(alpha) && alpha > 0 && std::isfinite(beta) && beta > 0,
            "alpha and beta are above 0");
    const std::size_t p = std::size_t(patch), margin = 2 * p + std::size_t(reach);
    require(n[0] > 2 * margin && n[1] > 2 * margin && n[2] > 2 * margin,
            "the margin of the grid is too small");
    const Grid grid{n};
    const std::size_t volume = grid.size();
    for (std::size_t i = 0; i < labels.size(); ++i)
        require(labels.data()[i] >= 0 && labels.data()[i] < classes, "labels are 0 to classes - 1");
    NewArray<std::int32_t, 3> out(n);
    NewArray<float, 3> posterior(n);
    {
        nb::gil_scoped_release nogil;
        const std::uint8_t* wanted = decide.data();
        // Weights are needed around the voxels to decide, as far as a patch reaches.
        std::vector<std::uint8_t> visit(volume);
        std::vector<std::int32_t> place(volume, -1);
        for (std::size_t x = margin; x + margin < n[0]; ++x)
            for (std::size_t y = margin; y + margin < n[1]; ++y)
                for (std::size_t z = margin; z + margin < n[2]; ++z)
                    if (wanted[grid.at(x, y, z)])
                        for (int i = -patch; i <= patch; ++i)
                            for (int j = -patch; j <= patch; ++j) {
                                const auto row = std::ptrdiff_t(grid.at(x, y, z)) + grid.step({i, j, -patch});
                                std::fill_n(visit.data() + row, 2 * p + 1, std::uint8_t(1));
                            }
        std::vector<std::size_t> visited;
        for (std::size_t v = 0; v < volume; ++v)
            if (visit[v]) place[v] = std::int32_t(visited.size()), visited.push_back(v);
        const Moments here(target.data(), grid, patch);
        std::vector<Moments> there;
        for (std::size_t a = 0; a < atlases; ++a) there.emplace_back(images.data() + a * volume, grid, patch);
        std::vector<std::int32_t> best(atlases * volume, 0);
        const auto offsets = offsets_of(reach);
        const std::size_t low = margin - p, high = n[0] - low, slabs = (high - low + kSlab - 1) / kSlab;
        parallel_for(int(atlases * slabs), [&](int task) {
            const std::size_t a = std::size_t(task) / slabs, first = low + std::size_t(task) % slabs * kSlab;
            search(target.data(), here, images.data() + a * volume, there[a], grid, visit.data(), offsets,
                   patch, first, std::min(first + kSlab, high), best.data() + a * volume);
        });
        std::vector<float> weights(visited.size() * atlases);
        const std::size_t voxels = (2 * p + 1) * (2 * p + 1) * (2 * p + 1), chunk = 1024;
        parallel_for(int((visited.size() + chunk - 1) / chunk), [&](int task) {
            std::vector<float> apart(atlases * voxels);
            std::vector<double> m(atlases * atlases), w(atlases), l(atlases * atlases);
            std::vector<int> used;
            const std::size_t end = std::min(visited.size(), (std::size_t(task) + 1) * chunk);
            for (std::size_t s = std::size_t(task) * chunk; s < end; ++s) {
                const std::size_t v = visited[s];
                for (std::size_t a = 0; a < atlases; ++a) {
                    const std::ptrdiff_t shift = best[a * volume + v];
                    const std::size_t u = std::size_t(std::ptrdiff_t(v) + shift);
                    const float* f = target.data() + v;
                    const float* g = images.data() + a * volume + u;
                    float* d = apart.data() + a * voxels;
                    for (int i = -patch; i <= patch; ++i)
                        for (int j = -patch; j <= patch; ++j) {
                            const std::ptrdiff_t row = grid.step({i, j, -patch});
                            for (std::size_t k = 0; k <= 2 * p; ++k) {
                                const std::ptrdiff_t at = row + std::ptrdiff_t(k);
                                *d++ = std::fabs((f[at] - here.mean[v]) * here.inverse[v] -
                                                 (g[at] - there[a].mean[u]) * there[a].inverse[u]);
                            }
                        }
                }
                for (std::size_t a = 0; a < atlases; ++a)
                    for (std::size_t b = 0; b <= a; ++b) {
                        const float *d = apart.data() + a * voxels, *e = apart.data() + b * voxels;
                        float sums[8] = {};
                        std::size_t k = 0;
                        for (; k + 8 <= voxels; k += 8)
                            for (std::size_t q = 0; q < 8; ++q) sums[q] += d[k + q] * e[k + q];
                        double sum = 0;
                        for (float q : sums) sum += q;
                        for (; k < voxels; ++k) sum += d[k] * e[k];
                        const double mean = sum / double(voxels - 1);
                        const double value = beta == 2 ? mean * mean : std::pow(mean, beta);
                        m[a * atlases + b] = m[b * atlases + a] = value;
                    }
                double trace = 0;
                for (std::size_t a = 0; a < atlases; ++a) trace += m[a * (atlases + 1)];
                for (std::size_t a = 0; a < atlases; ++a)
                    m[a * (atlases + 1)] += alpha * trace / double(atlases) + kNothing;
                solve_weights(m.data(), int(atlases), w.data(), l, used);
                for (std::size_t a = 0; a < atlases; ++a) weights[s * atlases + a] = float(w[a]);
            }
        });
        const auto around = offsets_of(patch);
        parallel_for(int(n[0]), [&](int plane) {
            std::vector<double> votes(std::size_t(classes), 0.0);
            std::vector<std::int32_t> seen;
            for (std::size_t y = 0; y < n[1]; ++y)
                for (std::size_t z = 0; z < n[2]; ++z) {
                    const std::size_t v = grid.at(std::size_t(plane), y, z);
                    out.data[v] = labels.data()[v], posterior.data[v] = 1;
                    if (!wanted[v] || place[v] < 0) continue;
                    seen.clear();
                    double total = 0;
                    for (const Offset& o : around) {
                        const std::int32_t s = place[std::size_t(std::ptrdiff_t(v) + grid.step(o))];
                        if (s < 0) continue;
                        const std::size_t u = visited[std::size_t(s)];
                        for (std::size_t a = 0; a < atlases; ++a) {
                            const float w = weights[std::size_t(s) * atlases + a];
                            if (w == 0) continue;
                            const auto from = std::ptrdiff_t(v) + best[a * volume + u];
                            const std::int32_t label = labels.data()[std::ptrdiff_t(a * volume) + from];
                            if (votes[std::size_t(label)] == 0) seen.push_back(label);
                            votes[std::size_t(label)] += w, total += w;
                        }
                    }
                    if (seen.empty()) continue;  // of infinite voxels there are no weights
                    std::int32_t first = seen.front();
                    for (std::int32_t label : seen) {
                        const double more = votes[std::size_t(label)] - votes[std::size_t(first)];
                        if (more > 0 || (more == 0 && label < first)) first = label;
                    }
                    out.data[v] = first, posterior.data[v] = float(votes[std::size_t(first)] / total);
                    for (std::int32_t label : seen) votes[std::size_t(label)] = 0;
                }
        });
    }
    return {out.release(), posterior.release()};
}

}  // namespace

void register_fusion(nb::module_& m) {
    m.def("joint_fusion", &joint_fusion, nb::arg("target"), nb::arg("images"), nb::arg("labels"),
          nb::arg("decide"), nb::arg("classes"), nb::arg("patch"), nb::arg("reach"), nb::arg("alpha"),
          nb::arg("beta"),
          "Labels of the voxels to decide, and the share of the votes that they got; elsewhere those of the "
          "first "
          "atlas. All arrays have a margin of two patches and the reach around the voxels to decide.");
}
