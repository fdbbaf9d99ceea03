// Surface of a mask as triangles, and the distance from points to the nearest triangle.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Vec = std::array<double, 3>;
using Triangle = std::array<Vec, 3>;

Vec minus(const Vec& a, const Vec& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }
double dot(const Vec& a, const Vec& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
Vec cross(const Vec& a, const Vec& b) {
    return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

// The mask as if voxels outside of the grid were empty; cell c has the corners c - 1 and c.
struct Padded {
    const std::uint8_t* mask;
    std::array<std::int64_t, 3> n;

    bool at(std::int64_t x, std::int64_t y, std::int64_t z) const {
        return x >= 0 && y >= 0 && z >= 0 && x < n[0] && y < n[1] && z < n[2] &&
               mask[(x * n[1] + y) * n[2] + z];
    }
    // Mean of the points where the border crosses the edges of a cell, in voxels; false where none does.
    bool vertex(const std::array<std::int64_t, 3>& cell, Vec& out) const {
        bool corner[2][2][2];
        int filled = 0;
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j)
                for (int k = 0; k < 2; ++k)
                    filled += corner[i][j][k] = at(cell[0] - 1 + i, cell[1] - 1 + j, cell[2] - 1 + k);
        if (filled == 0 || filled == 8) return false;
        Vec sum{0, 0, 0};
        int count = 0;
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j)
                for (int k = 0; k < 2; ++k) {
                    const bool here = corner[i][j][k];
                    const auto add = [&](double x, double y, double z) {
                        sum[0] += x, sum[1] += y, sum[2] += z, ++count;
                    };
                    if (!i && here != corner[1][j][k]) add(0.5, j, k);
                    if (!j && here != corner[i][1][k]) add(i, 0.5, k);
                    if (!k && here != corner[i][j][1]) add(i, j, 0.5);
                }
        for (int a = 0; a < 3; ++a) out[a] = double(cell[a] - 1) + sum[a] / count;
        return true;
    }
};

// Two triangles for each pair of neighbouring voxels of which one is in the mask.
Out<double> surface_net(In<std::uint8_t, 3> mask, std::array<double, 3> spacing) {
    const auto shape = require_volume(mask, "the mask");
    for (double s : spacing) require(std::isfinite(s) && s > 0, "spacings must be above 0");
    std::vector<Vec> vertices;
    std::vector<std::array<std::int32_t, 4>> quads;
    {
        nb::gil_scoped_release nogil;
        const Padded padded{mask.data(),
                            {std::int64_t(shape[0]), std::int64_t(shape[1]), std::int64_t(shape[2])}};
        const std::array<std::int64_t, 3> cells{padded.n[0] + 1, padded.n[1] + 1, padded.n[2] + 1};
        std::vector<std::int32_t> number(std::size_t(cells[0] * cells[1] * cells[2]), -1);
        const auto index = [&](const std::array<std::int64_t, 3>& c) {
            return std::size_t((c[0] * cells[1] + c[1]) * cells[2] + c[2]);
        };
        std::array<std::int64_t, 3> c;
        for (c[0] = 0; c[0] < cells[0]; ++c[0])
            for (c[1] = 0; c[1] < cells[1]; ++c[1])
                for (c[2] = 0; c[2] < cells[2]; ++c[2]) {
                    Vec v;
                    if (!padded.vertex(c, v)) continue;
                    number[index(c)] = std::int32_t(vertices.size());
                    vertices.push_back({v[0] * spacing[0], v[1] * spacing[1], v[2] * spacing[2]});
                }
        for (int axis = 0; axis < 3; ++axis) {
            const int one = axis == 0, two = axis == 2 ? 1 : 2;
            const auto from = [&](int a) { return a == axis ? std::int64_t(-1) : std::int64_t(0); };
            for (c[0] = from(0); c[0] < padded.n[0]; ++c[0])
                for (c[1] = from(1); c[1] < padded.n[1]; ++c[1])
                    for (c[2] = from(2); c[2] < padded.n[2]; ++c[2]) {
                        auto next = c;
                        ++next[axis];
                        if (padded.at(c[0], c[1], c[2]) == padded.at(next[0], next[1], next[2])) continue;
                        // The four cells around the edge; the cell above voxel v has the number v + 1.
                        std::array<std::array<std::int64_t, 3>, 4> around;
                        for (auto& cell : around) cell = {c[0] + 1, c[1] + 1, c[2] + 1};
                        --around[1][one], --around[2][one], --around[2][two], --around[3][two];
                        quads.push_back({number[index(around[0])], number[index(around[1])],
                                         number[index(around[2])], number[index(around[3])]});
                    }
        }
    }
    NewArray<double, 3> out({2 * quads.size(), 3, 3});
    double* to = out.data.get();
    for (int half = 0; half < 2; ++half)
        for (const auto& quad : quads)
            for (int corner : {0, 1 + half, 2 + half})
                to = std::copy_n(vertices[std::size_t(quad[std::size_t(corner)])].data(), 3, to);
    return out.release();
}

// Up to four triangles side by side, so that one loop measures them all; the last is repeated.
struct Leaf {
    static constexpr int kSize = 4;
    double corner[3][3][kSize], side[3][3][kSize], outward[3][3][kSize], normal[3][kSize];
    double per_length[3][kSize];  // 1 / square of the length of a side
    double limit[kSize];          // minus infinity for a triangle without an area

    void set(int at, const Triangle& t) {
        Vec sides[3];
        for (int i = 0; i < 3; ++i) sides[i] = minus(t[(i + 1) % 3], t[i]);
        const Vec n = cross(sides[0], sides[1]);
        const double area = std::sqrt(dot(n, n));
        limit[at] = area > 1e-12 ? 0.0 : -INFINITY;
        for (int i = 0; i < 3; ++i) {
            const Vec out = cross(sides[i], n);
            per_length[i][at] = 1.0 / std::max(dot(sides[i], sides[i]), 1e-300);
            normal[i][at] = area > 1e-12 ? n[i] / area : 0.0;
            for (int a = 0; a < 3; ++a)
                corner[i][a][at] = t[i][a], side[i][a][at] = sides[i][a], outward[i][a][at] = out[a];
        }
    }

    // Square of the distance from a point to the nearest of the triangles.
    double square_to(const Vec& p) const {
        double square[kSize];
        for (int at = 0; at < kSize; ++at) {
            double height = 0, least = INFINITY, outside = -INFINITY;
            for (int i = 0; i < 3; ++i) {
                const double x = p[0] - corner[i][0][at], y = p[1] - corner[i][1][at],
                             z = p[2] - corner[i][2][at];
                const double u = side[i][0][at], v = side[i][1][at], w = side[i][2][at];
                const double out = x * outward[i][0][at] + y * outward[i][1][at] + z * outward[i][2][at];
                outside = out > outside ? out : outside;
                double along = (x * u + y * v + z * w) * per_length[i][at];
                along = along < 0 ? 0 : along > 1 ? 1 : along;
                const double dx = x - along * u, dy = y - along * v, dz = z - along * w;
                const double rest = dx * dx + dy * dy + dz * dz;
                least = rest < least ? rest : least;
                if (i == 0) height = x * normal[0][at] + y * normal[1][at] + z * normal[2][at];
            }
            square[at] = outside <= limit[at] ? height * height : least;
        }
        return std::min(std::min(square[0], square[1]), std::min(square[2], square[3]));
    }
};

// Tree of boxes round triangles. A leaf is `leaves[first]`; another node has its children at `first` and
// `first + 1`.
struct Tree {
    struct Node {
        Vec low, high;
        std::int32_t first;
        bool leaf;
    };
    std::vector<Leaf> leaves;
    std::vector<Node> nodes;

    explicit Tree(const double* corners, std::size_t n) {
        std::vector<std::int32_t> order(n);
        std::iota(order.begin(), order.end(), 0);
        std::vector<Vec> middle(n);
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t a = 0; a < 3; ++a)
                middle[i][a] = corners[9 * i + a] + corners[9 * i + 3 + a] + corners[9 * i + 6 + a];
        struct Task {
            std::int32_t node, begin, end;
        };
        std::vector<Task> tasks{{0, 0, std::int32_t(n)}};
        nodes.resize(1);
        while (!tasks.empty()) {
            const Task task = tasks.back();
            tasks.pop_back();
            Node node{{INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}, 0, false};
            Vec low = node.low, high = node.high;
            for (std::int32_t i = task.begin; i < task.end; ++i)
                for (std::size_t a = 0; a < 3; ++a) {
                    const std::size_t t = std::size_t(order[std::size_t(i)]);
                    low[a] = std::min(low[a], middle[t][a]), high[a] = std::max(high[a], middle[t][a]);
                    for (std::size_t k = 0; k < 3; ++k) {
                        node.low[a] = std::min(node.low[a], corners[9 * t + 3 * k + a]);
                        node.high[a] = std::max(node.high[a], corners[9 * t + 3 * k + a]);
                    }
                }
            const std::int32_t count = task.end - task.begin;
            if (count <= Leaf::kSize) {
                node.first = std::int32_t(leaves.size()), node.leaf = true;
                leaves.emplace_back();
                for (std::int32_t at = 0; at < Leaf::kSize; ++at) {
                    Triangle t;
                    const std::int32_t from = order[std::size_t(task.begin + std::min(at, count - 1))];
                    std::copy_n(&corners[9 * std::size_t(from)], 9, t[0].data());
                    leaves.back().set(at, t);
                }
            } else {
                std::size_t axis = 0;
                for (std::size_t a = 1; a < 3; ++a)
                    if (high[a] - low[a] > high[axis] - low[axis]) axis = a;
                const std::int32_t half = task.begin + count / 2;
                std::nth_element(order.begin() + task.begin, order.begin() + half, order.begin() + task.end,
                                 [&](std::int32_t i, std::int32_t j) {
                                     const double a = middle[std::size_t(i)][axis],
                                                  b = middle[std::size_t(j)][axis];
                                     return a != b ? a < b : i < j;
                                 });
                node.first = std::int32_t(nodes.size());
                nodes.resize(nodes.size() + 2);
                tasks.push_back({node.first, task.begin, half});
                tasks.push_back({node.first + 1, half, task.end});
            }
            nodes[std::size_t(task.node)] = node;
        }
    }

    static double square_to_box(const Vec& p, const Node& node) {
        double sum = 0;
        for (std::size_t a = 0; a < 3; ++a) {
            const double d = std::max({node.low[a] - p[a], 0.0, p[a] - node.high[a]});
            sum += d * d;
        }
        return sum;
    }

    // Square of the distance to the nearest triangle, which lies in leaf `last`; that of the point before
    // gives the first bound.
    double nearest(const Vec& p, std::int32_t& last) const {
        struct Waiting {
            std::int32_t node;
            double square;
        } stack[128];
        double best = leaves[std::size_t(last)].square_to(p);
        int depth = 0;
        stack[depth++] = {0, 0.0};
        while (depth) {
            const Waiting now = stack[--depth];
            if (now.square >= best) continue;
            const Node& node = nodes[std::size_t(now.node)];
            if (node.leaf) {
                const double square = leaves[std::size_t(node.first)].square_to(p);
                if (square < best) best = square, last = node.first;
                continue;
            }
            const Waiting one{node.first, square_to_box(p, nodes[std::size_t(node.first)])};
            const Waiting two{node.first + 1, square_to_box(p, nodes[std::size_t(node.first) + 1])};
            const bool swap = one.square < two.square;  // the nearer child is looked at first
            if (std::max(one.square, two.square) < best) stack[depth++] = swap ? two : one;
            if (std::min(one.square, two.square) < best) stack[depth++] = swap ? one : two;
        }
        return best;
    }
};

// Points of one task: each task begins without a neighbour, so that threads cannot change a bit.
constexpr std::size_t kChunk = 512;

Out<double> distance_to_surface(In<double, 2> points, In<double, 3> triangles) {
    require(points.shape(1) == 3, "points have three coordinates");
    require(triangles.shape(1) == 3 && triangles.shape(2) == 3,
            "triangles have three corners of three coordinates");
    const std::size_t n = points.shape(0), m = triangles.shape(0);
    require(m >= 1 && m <= kMostVoxels, "a surface has 1 to 2^31 - 1 triangles");
    require_finite(points.data(), 3 * n, "points must be finite");
    require_finite(triangles.data(), 9 * m, "triangles must be finite");
    NewArray<double, 1> out({n});
    {
        nb::gil_scoped_release nogil;
        const Tree tree(triangles.data(), m);
        parallel_for(int((n + kChunk - 1) / kChunk), [&](int chunk) {
            const std::size_t begin = std::size_t(chunk) * kChunk;
            std::int32_t last = 0;
            for (std::size_t i = begin; i < std::min(n, begin + kChunk); ++i)
                out.data[i] = std::sqrt(tree.nearest({points(i, 0), points(i, 1), points(i, 2)}, last));
        });
    }
    return out.release();
}

}  // namespace

void register_surface(nb::module_& m) {
    m.def("surface_net", &surface_net, nb::arg("mask"), nb::arg("spacing"),
          "Triangles (T, 3, 3) of the surface net of a mask; the first voxel is the origin.");
    m.def("distance_to_surface", &distance_to_surface, nb::arg("points"), nb::arg("triangles"),
          "Distance from each point (N, 3) to the nearest of the triangles (T, 3, 3).");
}
