#include "client/formats/data_type.h"

#include <set>
#include <string_view>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

TEST(DataTypeTest, FindsEachTypeByEachOfItsNames) {
  std::set<std::string_view> names;
  for (const DataTypeInfo& info : AllDataTypes()) {
    EXPECT_EQ(&InfoOf(info.type), &info);
    EXPECT_TRUE(names.insert(info.torch_name).second) << info.torch_name;
    EXPECT_EQ(DataTypeOfTorchName(info.torch_name), info.type);
    if (!info.storage_class.empty()) {
      EXPECT_EQ(DataTypeOfStorageClass(info.storage_class), info.type);
    }
    if (!info.safetensors_name.empty()) {
      EXPECT_EQ(DataTypeOfSafetensorsName(info.safetensors_name), info.type);
    }
  }
  EXPECT_EQ(DataTypeOfTorchName("half"), DataType::kFloat16);
}

TEST(DataTypeTest, EmptyNameFindsNothing) {
  EXPECT_EQ(DataTypeOfTorchName(""), std::nullopt);
  EXPECT_EQ(DataTypeOfStorageClass(""), std::nullopt);
  EXPECT_EQ(DataTypeOfSafetensorsName(""), std::nullopt);
  EXPECT_EQ(DataTypeOfStorageClass("UntypedStorage"), std::nullopt);
  EXPECT_EQ(DataTypeOfSafetensorsName("f32"), std::nullopt);
}

}  // namespace
}  // namespace ckptd
