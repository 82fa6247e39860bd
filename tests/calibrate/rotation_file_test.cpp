#include "calibrate/rotation_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/h5.h"
#include "catch.h"
#include "quant/plain_codec.h"
#include "transform/transform.h"

using namespace kvlab;
using calibrate::read_rotation_file;
using calibrate::RotationFile;
using calibrate::write_rotation_file;

namespace {

namespace fs = std::filesystem;

/// A folder of this test alone, gone at its end.
class Folder {
 public:
  Folder() {
    static int count = 0;
    path_ = fs::temp_directory_path() /
            ("kvlab_rotation_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

RotationFile example() {
  RotationFile file;
  file.method = "optr";
  file.calibration = "abc123";
  auto& layer = file.layers[10];
  layer.key.rotation = transform::random_orthogonal(8, 1).unsqueeze(0);
  layer.key.center = plain::gaussian({2, 8}, 1000);
  layer.key.extra["kept"] = at::tensor({1.0, 0.0}, at::kDouble);
  layer.value.rotation =
      at::stack({transform::random_orthogonal(8, 2), transform::random_orthogonal(8, 3)});
  file.layers[0].key.center = plain::gaussian({2, 8}, 1001);
  return file;
}

}  // namespace

TEST_CASE("D47 a rotation file comes back bit by bit", "[rotation_file]") {
  const Folder folder;
  const RotationFile written = example();
  write_rotation_file(folder / "sub/r.h5", written);
  const RotationFile read = read_rotation_file(folder / "sub/r.h5");
  CHECK(read.method == "optr");
  CHECK(read.calibration == "abc123");
  REQUIRE(read.layers.size() == 2);
  const auto& layer = read.layers.at(10);
  CHECK(layer.key.rotation.scalar_type() == at::kDouble);
  CHECK(layer.key.center.scalar_type() == at::kFloat);
  CHECK(at::equal(layer.key.rotation, written.layers.at(10).key.rotation));
  CHECK(at::equal(layer.key.center, written.layers.at(10).key.center));
  CHECK(at::equal(layer.key.extra.at("kept"), at::tensor({1.0, 0.0}, at::kDouble)));
  CHECK(at::equal(layer.value.rotation, written.layers.at(10).value.rotation));
  CHECK_FALSE(layer.value.center.defined());
  CHECK_FALSE(read.layers.at(0).value.rotation.defined());
  CHECK(at::equal(read.layers.at(0).key.center, written.layers.at(0).key.center));
}

TEST_CASE("rotation files have the layout of contract section 6", "[rotation_file]") {
  const Folder folder;
  write_rotation_file(folder / "r.h5", example());
  const h5::File file = h5::File::open(folder / "r.h5");
  CHECK(file.attribute<std::string>("/", "schema") == "kvlab.rotation/1");
  CHECK(file.attribute<std::string>("/", "method") == "optr");
  CHECK(file.info("/layer_010/key/rotation").shape == std::vector<int64_t>{1, 8, 8});
  CHECK(file.info("/layer_010/value/rotation").shape == std::vector<int64_t>{2, 8, 8});
  CHECK(file.info("/layer_010/key/center").shape == std::vector<int64_t>{2, 8});
}

TEST_CASE("a rotation file is written in one step", "[rotation_file]") {
  const Folder folder;
  write_rotation_file(folder / "r.h5", example());
  RotationFile other = example();
  other.method = "second";
  write_rotation_file(folder / "r.h5", other);
  CHECK(read_rotation_file(folder / "r.h5").method == "second");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++files;
  CHECK(files == 1);  // no temporary is left
}

TEST_CASE("a rotation file that changed since it was written is refused", "[rotation_file]") {
  const Folder folder;
  const std::string path = (folder / "r.h5").string();
  write_rotation_file(path, example());
  {
    h5::File file = h5::File::edit(path);
    file.set_attribute("/layer_010", "note", std::string_view("changed"));
  }
  CHECK_THROWS_WITH(read_rotation_file(path),
                    ContainsSubstring(path) && ContainsSubstring("the checksum differs"));
}

TEST_CASE("D47 what is no rotation is refused with its place", "[rotation_file]") {
  const Folder folder;
  const std::string path = (folder / "r.h5").string();
  const auto write = [&](const std::function<void(RotationFile&)>& change) {
    RotationFile file = example();
    change(file);
    write_rotation_file(path, file);
  };
  SECTION("not orthogonal") {
    write([](RotationFile& f) { f.layers[10].key.rotation = f.layers[10].key.rotation * 1.01; });
    CHECK_THROWS_WITH(read_rotation_file(path),
                      ContainsSubstring(path + ":/layer_010/key/rotation") &&
                          ContainsSubstring("not orthogonal"));
  }
  SECTION("NaN") {
    write([](RotationFile& f) { f.layers[10].key.rotation[0][3][3] = -std::nan(""); });
    CHECK_THROWS_WITH(read_rotation_file(path),
                      ContainsSubstring(path + ":/layer_010/key/rotation: the rotation holds NaN"));
  }
  SECTION("not square") {
    write([](RotationFile& f) { f.layers[10].value.rotation = at::zeros({2, 8, 4}, at::kDouble); });
    CHECK_THROWS_WITH(read_rotation_file(path), ContainsSubstring("/layer_010/value/rotation") &&
                                                    ContainsSubstring("[2, 8, 4]"));
  }
  SECTION("one matrix without a dimension for heads") {
    write(
        [](RotationFile& f) { f.layers[10].value.rotation = transform::random_orthogonal(8, 3); });
    CHECK_THROWS_WITH(read_rotation_file(path), ContainsSubstring("[8, 8]"));
  }
  SECTION("another schema") {
    h5::File file = h5::File::create(path);
    file.set_attribute("/", "schema", std::string_view("kvlab.capture/1"));
    file.close();
    CHECK_THROWS_WITH(read_rotation_file(path), ContainsSubstring(path) &&
                                                    ContainsSubstring("kvlab.rotation/1") &&
                                                    ContainsSubstring("kvlab.capture/1"));
  }
  SECTION("a group with a strange name") {
    h5::File file = h5::File::create(path);
    file.set_attribute("/", "schema", std::string_view("kvlab.rotation/1"));
    file.make_group("/layer_1x");
    file.close();
    CHECK_THROWS_WITH(read_rotation_file(path), ContainsSubstring("layer_1x"));
  }
  SECTION("no file, and no HDF5 file") {
    CHECK_THROWS_AS(read_rotation_file(folder / "absent.h5"), Error);
    std::ofstream(folder / "text.h5") << "rotation";
    CHECK_THROWS_AS(read_rotation_file(folder / "text.h5"), Error);
  }
}

TEST_CASE("a rotation stored in float32 passes as orthogonal", "[rotation_file]") {
  const Folder folder;
  RotationFile file = example();
  file.layers[10].key.rotation = transform::random_orthogonal(128, 4).unsqueeze(0).to(at::kFloat);
  file.layers[10].key.center = at::Tensor();
  write_rotation_file(folder / "r.h5", file);
  CHECK(read_rotation_file(folder / "r.h5").layers.at(10).key.rotation.size(1) == 128);
}
